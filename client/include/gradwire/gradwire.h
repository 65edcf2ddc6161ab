/* gradwire.h: what a trainer links to average its gradients through the node's gradwired.
 *
 * Life of a rank:  gw_join -> gw_bucket_create (the same buckets on every rank) -> write gradients into
 * gw_bucket_gradient -> gw_allreduce -> gw_wait -> read gw_bucket_result -> ... -> gw_leave.
 *
 * Every function returns a gw_status (GW_OK is 0). gw_last_error gives one sentence about the calling
 * thread's last failure. Different jobs are independent. Within a job two threads may be at work at the same
 * time, one on each side, so that a thread that sleeps in a wait does not hold up submissions:
 *   submitting side   gw_bucket_create, gw_bucket_destroy, gw_job_traffic, gw_state_save, gw_state_load, and
 *                     whatever starts an operation
 *   waiting side      gw_wait, gw_wait_any, gw_test
 * gw_barrier and gw_leave need both. A second thread on one side gets GW_ERR_BUSY and nothing is done; which
 * thread is on a side may change from call to call. The library starts no thread, takes over no signal, and
 * needs libc only. After fork() every call in the child fails with GW_ERR_FORKED (gw_leave still frees the
 * child's copy); the parent goes on.
 *
 * Time-outs are in milliseconds; negative means: as long as the daemon's own clocks allow.
 */
#ifndef GRADWIRE_GRADWIRE_H_
#define GRADWIRE_GRADWIRE_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define GW_API __attribute__((visibility("default")))
#else
#define GW_API
#endif

typedef int32_t gw_status;
enum {
  GW_OK = 0,
  GW_ERR_INVALID = 1,     /* an argument is wrong; nothing was done */
  GW_ERR_NOT_FOUND = 2,   /* no such bucket, layer or rank */
  GW_ERR_MISMATCH = 3,    /* ranks disagree on what must be equal */
  GW_ERR_EXHAUSTED = 4,   /* memory, descriptors or a quota ran out */
  GW_ERR_UNAVAILABLE = 5, /* the daemon is not there, or went away */
  GW_ERR_TIMEOUT = 6,     /* a clock ran out; the operation goes on unless the job was aborted */
  GW_ERR_ABORTED = 7,     /* the job's epoch ended: a rank, a daemon or the network failed */
  GW_ERR_PERMISSION = 8,  /* the daemon refused this user */
  GW_ERR_UNSUPPORTED = 9, /* valid, but not offered by this version */
  GW_ERR_BUSY = 10,       /* the bucket already has an operation in flight, or the ring is full */
  GW_ERR_FORKED = 11,     /* the handle belongs to the parent process */
  GW_ERR_PROTOCOL = 12,   /* daemon and library do not understand each other: versions differ, or a bug */
  GW_ERR_INTERNAL = 13
};

typedef uint8_t gw_dtype;
enum {
  GW_FLOAT32 = 0,
  GW_FLOAT16 = 1,
  GW_BFLOAT16 = 2,
  GW_FLOAT64 = 3,
  GW_INT32 = 4,
  GW_INT64 = 5,
  GW_UINT8 = 6
};

typedef uint8_t gw_reduce_op;
enum { GW_SUM = 0, GW_AVERAGE = 1, GW_MIN = 2, GW_MAX = 3, GW_PRODUCT = 4 };

typedef struct gw_job gw_job;       /* this rank's membership of a job */
typedef struct gw_bucket gw_bucket; /* belongs to its job; freed by gw_bucket_destroy or gw_leave */

/* How to join. Zero-initialise, set struct_size, fill what you know. What is 0/NULL comes from the
 * environment: GRADWIRE_*, then torchrun's RANK/WORLD_SIZE/MASTER_ADDR/TORCHELASTIC_RUN_ID, then Open MPI's,
 * then Slurm's. Job and run id are UTF-8 of 1 to 127 bytes without control characters (gw_bucket_create). */
typedef struct gw_join_options {
  size_t struct_size; /* sizeof(gw_join_options): lets the struct grow */
  const char* job;    /* name; default GRADWIRE_JOB, else the launcher's job id, else "default" */
  const char* run_id; /* tells two runs of one job apart; default the launcher's run id, else "0" */
  int32_t rank;       /* -1: from the environment; also 0 while world is not given */
  int32_t world;      /* -1 or 0: from the environment */
  const char*
      rendezvous;     /* "host[:port]" of the coordinating daemon; default GRADWIRE_RENDEZVOUS, MASTER_ADDR */
  const char* socket; /* the daemon's socket; default GRADWIRE_SOCKET, else /run/gradwire/gradwired.sock */
  int64_t timeout_ms; /* of the join; 0 or negative: the daemon's operation_timeout */
  int64_t wait_ms;    /* for a daemon that is not there yet; 0: GRADWIRE_WAIT_MS; negative, or neither: not */
  uint32_t flags;     /* GW_JOIN_... */
} gw_join_options;

enum {
  GW_JOIN_FRESH = 1u, /* the training starts anew: when the job forms, all its daemons drop what they kept of
                        it (residuals, progress). One rank's is enough. */
  GW_JOIN_LEAVE_AT_EXIT = 2u /* exit(0) and a return of 0 from main leave the job, if no operation of it is in
                                flight or not waited for. Any other end is a rank's death, as without it. The
                                library stays loaded. */
};

/* Connects to the node's daemon and waits until all ranks of the job are there. */
GW_API gw_status gw_join(const gw_join_options* options, gw_job** job);
/* Orderly end: operations in flight are waited for by the daemons. Frees the job and its buckets, always. */
GW_API gw_status gw_leave(gw_job* job);

GW_API int32_t gw_rank(const gw_job* job);
GW_API int32_t gw_world(const gw_job* job);
GW_API int32_t gw_local_ranks(const gw_job* job); /* ranks of this job on this node */
GW_API uint64_t gw_epoch(const gw_job* job);      /* 1 at first, one more each time the job comes back */

/* How far the job's epoch before this one came. Completion is not atomic across nodes: where lowest and
 * highest differ, or unknown_nodes is not 0, the ranks' parameters may differ, and a broadcast from
 * highest_rank makes them equal again. Sequence numbers count a bucket's operations within an epoch, from 1.
 */
typedef struct gw_progress {
  size_t struct_size;
  uint64_t epoch;       /* that epoch */
  uint64_t lowest;      /* sequence number that every node completed; 0: none */
  uint64_t highest;     /* that some node completed */
  int32_t highest_rank; /* lowest rank of this epoch on a node that completed `highest`; -1: there is none */
  uint32_t unknown_nodes; /* nodes of this epoch whose daemon does not know: it is new, or was restarted */
} gw_progress;
/* GW_ERR_NOT_FOUND: this is the job's first epoch, or the one before had no bucket of that name. */
GW_API gw_status gw_previous_epoch(const gw_job* job, const char* bucket, gw_progress* progress);

typedef struct gw_layer {
  const char* name; /* as gw_bucket_create has it, unique in the bucket */
  uint64_t elements;
} gw_layer;

enum {
  GW_BUCKET_GRADIENT =
      1u /* holds gradients: may be compressed by the policy. Without it every operation is exact */
};

/* Creates a bucket of layers that lie one after another without gaps. Collective: returns when every rank has
 * created a bucket of this name with the same layers, dtype and flags, else GW_ERR_MISMATCH on all of them.
 * Names are UTF-8 of 1 to 4,096 bytes without control characters (nor what separates lines or turns the
 * direction of writing, U+2028 and U+202E for example); at most 300,000 layers, 8 MiB of names and 2^40
 * elements.
 */
GW_API gw_status gw_bucket_create(gw_job* job, const char* name, gw_dtype dtype, const gw_layer* layers,
                                  size_t layer_count, uint32_t flags, gw_bucket** bucket);
/* Local; the bucket must have no operation in flight or not waited for (GW_ERR_BUSY) unless the job has
 * failed. Its memory is unmapped whatever else is returned. */
GW_API gw_status gw_bucket_destroy(gw_bucket* bucket);

GW_API uint64_t gw_bucket_elements(const gw_bucket* bucket);
GW_API uint64_t gw_bucket_bytes(const gw_bucket* bucket);
/* This rank writes here between completion and the next submit (elements * dtype bytes, 64-byte aligned). */
GW_API void* gw_bucket_gradient(const gw_bucket* bucket);
/* Read-only; valid from a completion to this rank's next submit. One region a node. */
GW_API const void* gw_bucket_result(const gw_bucket* bucket);
/* Name of the codec that the policy gave to the bucket ("none", "laco", "mixed"). */
GW_API const char* gw_bucket_codec(const gw_bucket* bucket);

/* Asynchronous operations; one in flight a bucket. gw_wait ends them. */
GW_API gw_status gw_allreduce(gw_bucket* bucket, gw_reduce_op op);
/* The same with the step's loss scale, equal on all ranks and from 2^-60 to 2^60, else GW_ERR_INVALID:
 * residuals follow a change of it. */
GW_API gw_status gw_allreduce_scaled(gw_bucket* bucket, gw_reduce_op op, double scale);
/* An allreduce that sends every layer densely, so that next to nothing stays in the residuals: nothing at all
 * of layers whose codec sends values as they are, a dense quantisation's error of the others. For the moments
 * at which what is held back should be in the parameters: a drop of the learning rate, a checkpoint, an
 * evaluation, the last step before the membership changes. Collective: where some ranks flush an operation
 * and others do not, the job ends with a sentence that names both. Exact buckets, too, take it for an
 * allreduce. `scale` as of gw_allreduce_scaled; gw_flush is the same with scale 1. */
GW_API gw_status gw_flush(gw_bucket* bucket, gw_reduce_op op);
GW_API gw_status gw_flush_scaled(gw_bucket* bucket, gw_reduce_op op, double scale);
/* Root's gradient region goes to everybody's result region, exactly. */
GW_API gw_status gw_broadcast(gw_bucket* bucket, int32_t root);

/* Shards: a bucket whose elements the world divides evenly has one shard a rank, in the order of the ranks.
 * GW_ERR_INVALID where it does not divide: pad the last layer. */
GW_API gw_status gw_bucket_shard(const gw_bucket* bucket, int32_t rank, uint64_t* first, uint64_t* elements);
/* Every rank's shard of its gradient region goes to its place in everybody's result region, exactly. */
GW_API gw_status gw_allgather(gw_bucket* bucket);
/* The result region holds the reduced shards of this node's ranks at their places, exactly even where the
 * bucket's allreduce is compressed; what else is in it is undefined. GW_RESULT_NOT_FINITE speaks of these
 * shards alone, which are NaN then; ranks on other nodes are not told. */
GW_API gw_status gw_reduce_scatter(gw_bucket* bucket, gw_reduce_op op);

enum { GW_RESULT_NOT_FINITE = 1u /* some rank's gradient was Inf or NaN: the result is NaN everywhere */ };
/* Waits for the bucket's operation. GW_ERR_TIMEOUT leaves it in flight. `flags` may be NULL. */
GW_API gw_status gw_wait(gw_bucket* bucket, int64_t timeout_ms, uint32_t* flags);
/* Waits for whichever operation of the job ends next, sets *bucket to it and returns its status, as gw_wait
 * would. *bucket is NULL when no operation ended: GW_ERR_TIMEOUT, GW_ERR_NOT_FOUND (none is in flight), or a
 * failure of the whole job. Barriers are not reported here. */
GW_API gw_status gw_wait_any(gw_job* job, int64_t timeout_ms, gw_bucket** bucket, uint32_t* flags);
/* *done = 1 and the status of the operation if it has ended, else *done = 0 and GW_OK. Never sleeps. */
GW_API gw_status gw_test(gw_bucket* bucket, int* done, uint32_t* flags);

/* Returns when every rank of the job has called it. After GW_ERR_TIMEOUT the next call goes on waiting for
 * the same barrier. */
GW_API gw_status gw_barrier(gw_job* job, int64_t timeout_ms);

/* What this job moved over this node's network so far (from the daemon; both include our headers). */
typedef struct gw_traffic {
  size_t struct_size;
  uint64_t operations; /* completed allreduces */
  uint64_t raw_bytes;  /* what an uncompressed ring would have sent */
  uint64_t wire_bytes; /* what was sent */
} gw_traffic;
GW_API gw_status gw_job_traffic(gw_job* job, gw_traffic* traffic);

/* The compression state of this node (residuals, sparsity controllers, warm start) as bytes to keep with a
 * checkpoint: docs/state-format.md. One state a node: let the lowest local rank save and load it. Any other
 * rank of the node gets the same bytes, and a second load replaces the first.
 * Both belong to the submitting side; the functions run on the calling thread and must not call this job, nor
 * throw or jump out.
 *
 * Save: when every operation that this rank has started was waited for (GW_ERR_BUSY names one that was not);
 * other ranks may be ahead. `write` takes `size` bytes at a time and returns 0, or anything else to stop.
 * Load: before buckets are created, which take up their layers' state by name and size. It replaces what the
 * daemon has kept of the job, counts towards the user's quota, and goes with the epoch. `read` puts up to
 * `size` bytes to `data` and returns how many, 0 at the end, or a negative number to stop.
 * Any other number of nodes is well, too: each state may be loaded on one node, whichever, and nodes without
 * one start with empty residuals. What is in a state that nobody loads is lost to the training.
 *
 * After any failure what `write` has is of no use, or nothing has been loaded. The job goes on and the call
 * may be made again, but for a job or a daemon that is gone:
 *   GW_ERR_INVALID      a NULL; `write` or `read` stopped; a bucket is there that could take up the state;
 *                       the state is damaged (the sentence says where), or is none
 *   GW_ERR_BUSY         an operation was not waited for, or another thread is on the submitting side
 *   GW_ERR_UNAVAILABLE  an operation ran, or a bucket went, while its state was saved; the last messages of a
 *                       destroyed bucket are still on their way when a state is loaded; the daemon is gone
 *   GW_ERR_EXHAUSTED    the user's quota or the daemon's memory ran out: the sentence has the sum
 *   GW_ERR_UNSUPPORTED  a version that the daemon does not read, or it keeps no residuals
 *   GW_ERR_TIMEOUT      the daemon did not answer in time
 *   GW_ERR_ABORTED, GW_ERR_FORKED, GW_ERR_PROTOCOL  as everywhere */
typedef int (*gw_state_write)(void* user, const void* data, size_t size);
typedef int64_t (*gw_state_read)(void* user, void* data, size_t size);
GW_API gw_status gw_state_save(gw_job* job, gw_state_write write, void* user);
GW_API gw_status gw_state_load(gw_job* job, gw_state_read read, void* user);

/* One sentence about this thread's last failure; never NULL. */
GW_API const char* gw_last_error(void);
GW_API const char* gw_status_name(gw_status status);
GW_API const char* gw_version(void);

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* GRADWIRE_GRADWIRE_H_ */

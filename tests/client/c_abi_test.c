/* gradwire.h in C11: every type and function named once, and called where no daemon is needed. */
#include <gradwire/gradwire.h>
#include <stdio.h>
#include <string.h>

static int failures = 0;

static void check(int condition, const char* what) {
  if (!condition) {
    printf("failed: %s (last error: %s)\n", what, gw_last_error());
    ++failures;
  }
}

int main(void) {
  gw_join_options options;
  gw_job* job = (gw_job*)&options;
  gw_bucket* bucket = NULL;
  gw_layer layer = {"weight", 1};
  gw_traffic traffic;
  gw_progress progress;
  uint64_t first = 0, elements = 0;
  int done = 0;
  uint32_t flags = 0;

  memset(&options, 0, sizeof options);
  memset(&traffic, 0, sizeof traffic);
  memset(&progress, 0, sizeof progress);
  options.struct_size = sizeof options;
  options.world = 1;
  options.socket = "/nonexistent/gradwired.sock";

  check(sizeof(gw_status) == 4 && sizeof(gw_dtype) == 1 && sizeof(gw_reduce_op) == 1,
        "sizes of the scalar types");
  check(sizeof(gw_layer) == 16, "size of gw_layer");
  check(GW_OK == 0 && GW_ERR_INTERNAL == 13 && GW_UINT8 == 6 && GW_PRODUCT == 4, "values of the enumerators");
  check(gw_last_error() != NULL, "a last error before any failure");
  check(gw_join(&options, &job) == GW_ERR_UNAVAILABLE, "join without a daemon");
  check(job == NULL, "the job after a failed join");
  check(strstr(gw_last_error(), "no gradwired at /nonexistent/gradwired.sock") != NULL, "the sentence");
  check(strstr(gw_last_error(), "GRADWIRE_SOCKET") != NULL, "the remedy");
  options.wait_ms = 20;
  options.flags = GW_JOIN_FRESH | GW_JOIN_LEAVE_AT_EXIT;
  check(gw_join(&options, &job) == GW_ERR_UNAVAILABLE, "join that waits for a daemon");
  check(strstr(gw_last_error(), "waited") != NULL, "the sentence says so");
  check(gw_join(&options, NULL) == GW_ERR_INVALID, "join without a place for the job");
  options.struct_size = 0;
  check(gw_join(&options, &job) == GW_ERR_INVALID, "join without struct_size");

  check(gw_bucket_create(NULL, "b", GW_FLOAT32, &layer, 1, GW_BUCKET_GRADIENT, &bucket) == GW_ERR_INVALID,
        "create");
  check(gw_bucket_destroy(NULL) == GW_ERR_INVALID, "destroy");
  check(gw_bucket_elements(NULL) == 0 && gw_bucket_bytes(NULL) == 0, "sizes of no bucket");
  check(gw_bucket_gradient(NULL) == NULL && gw_bucket_result(NULL) == NULL, "memory of no bucket");
  check(gw_bucket_codec(NULL) != NULL, "codec of no bucket");
  check(gw_allreduce(NULL, GW_SUM) == GW_ERR_INVALID, "allreduce");
  check(gw_allreduce_scaled(NULL, GW_SUM, 2.0) == GW_ERR_INVALID, "allreduce_scaled");
  check(gw_flush(NULL, GW_SUM) == GW_ERR_INVALID, "flush");
  check(gw_flush_scaled(NULL, GW_SUM, 2.0) == GW_ERR_INVALID, "flush_scaled");
  check(gw_broadcast(NULL, 0) == GW_ERR_INVALID, "broadcast");
  check(gw_allgather(NULL) == GW_ERR_INVALID, "allgather");
  check(gw_reduce_scatter(NULL, GW_MAX) == GW_ERR_INVALID, "reduce_scatter");
  check(gw_bucket_shard(NULL, 0, &first, &elements) == GW_ERR_INVALID, "shard");
  check(gw_wait(NULL, 0, &flags) == GW_ERR_INVALID, "wait");
  check(gw_wait_any(NULL, 0, &bucket, &flags) == GW_ERR_INVALID, "wait_any");
  check(gw_test(NULL, &done, &flags) == GW_ERR_INVALID, "test");
  check(gw_barrier(NULL, 0) == GW_ERR_INVALID, "barrier");
  check(gw_job_traffic(NULL, &traffic) == GW_ERR_INVALID, "traffic");
  check(gw_epoch(NULL) == 0, "epoch of no job");
  check(gw_previous_epoch(NULL, "b", &progress) == GW_ERR_INVALID, "previous epoch of no job");
  check(gw_rank(NULL) == -1 && gw_world(NULL) == -1 && gw_local_ranks(NULL) == -1, "ranks of no job");
  check(gw_leave(NULL) == GW_ERR_INVALID, "leave");
  check(strcmp(gw_status_name(GW_ERR_BUSY), "busy") == 0, "name of a status");
  check(strcmp(gw_status_name(99), "unknown") == 0, "name of an unknown status");
  check(strlen(gw_version()) >= 5, "version");
  return failures == 0 ? 0 : 1;
}

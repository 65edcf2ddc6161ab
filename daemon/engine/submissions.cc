// The local ranks' rings. What lies in them was written by a client: every field is checked, and a client
// that breaks the rules ends its own job, nobody else's.
#include <algorithm>
#include <bit>

#include "client/include/gradwire/gradwire.h"
#include "config/base/loss_scale.h"
#include "daemon/engine/bell.h"
#include "daemon/engine/collectives.h"
#include "daemon/engine/core.h"

namespace gradwire::engine {

namespace {

// Submissions of a rank before others get their turn.
constexpr size_t kRingTurn = 32;

std::string rank_label(const Job& job, uint32_t local) {
  return "rank " + std::to_string(job.ranks[local].spec.rank) + " on " + node_label(job, job.spec.node_index);
}

bool reserved_is_zero(const layout::Submission& submission) {
  return (submission.flags & ~layout::kSubmissionFlush) == 0 &&
         std::all_of(std::begin(submission.reserved), std::end(submission.reserved),
                     [](uint8_t byte) { return byte == 0; });
}

}  // namespace

size_t Core::poll_rings() {
  size_t work = 0;
  for (size_t at = 0; at < jobs_.size(); ++at) {
    Job& job = *jobs_[at];
    const Turn ring_turn = turn(kRingTurn);
    for (uint32_t local = 0; local < job.ranks.size(); ++local) {
      if (job.failed && !job.aborted) {
        break;  // frozen; abort_job brings the answer to what is in the rings
      }
      work += poll_rank(job, local, ring_turn);
    }
  }
  return work;
}

size_t Core::poll_rank(Job& job, uint32_t local, const Turn& turn) {
  RankState& rank = job.ranks[local];
  size_t work = 0;
  while (!rank.left && !rank.broken && may_go_on(turn, work) && (!job.failed || job.aborted)) {
    layout::Submission submission;
    const layout::RingState state = rank.submissions.pop(&submission);
    if (state == layout::RingState::kEmpty) {
      break;
    }
    ++work;
    if (state == layout::RingState::kCorrupt) {
      rank.broken = true;
      fail(job, Status(Code::kCorrupt, rank_label(job, local) +
                                           " has written a counter that makes no sense into its ring of "
                                           "submissions"));
    } else if (job.aborted) {
      refuse(job, local, submission);
    } else {
      ++rank.submitted;
      submit(job, local, submission);
    }
  }
  return work;
}

Status Core::check(const Job& job, uint32_t local, const layout::Submission& submission,
                   Bucket** bucket) const {
  *bucket = job.buckets.find(submission.bucket);
  if (*bucket == nullptr || (*bucket)->spec.reducer == nullptr || (*bucket)->removed || (*bucket)->own) {
    return Status(Code::kNotFound, "there is no bucket " + std::to_string(submission.bucket));
  }
  const Bucket& target = **bucket;
  const RankSlot& slot = target.ranks[local];
  const auto what = [&target, &submission] { return operation_label(target, submission.sequence) + ": "; };
  const bool barrier = submission.operation == layout::kOpBarrier;
  const bool broadcast = submission.operation == layout::kOpBroadcast;
  if (submission.operation < layout::kOpAllreduce || submission.operation > layout::kOpReduceScatter ||
      barrier != (submission.bucket == layout::kBarrierBucket)) {
    return Status(Code::kInvalidArgument, what() + "operation kind " + std::to_string(submission.operation) +
                                              " is unknown or not meant for this bucket");
  }
  if (slot.pending) {
    return Status(Code::kInvalidArgument,
                  what() + "operation " + std::to_string(slot.last) + " has not been completed");
  }
  if (submission.sequence != slot.last + 1) {
    return Status(Code::kInvalidArgument,
                  what() + "the next sequence number is " + std::to_string(slot.last + 1));
  }
  if (!barrier && submission.dtype != target.dtype) {  // a barrier has no elements
    return Status(Code::kMismatch, what() + "the bucket holds " + std::string(dtype_name(target.dtype)) +
                                       ", the submission says " + std::string(dtype_name(submission.dtype)) +
                                       " (" + std::to_string(submission.dtype) + ")");
  }
  if (submission.reduce_op > static_cast<uint8_t>(compress::ReduceOp::kProduct) ||
      (submission.operation == layout::kOpAllgather && submission.reduce_op != 0)) {
    return Status(Code::kInvalidArgument, what() + "reduction " + std::to_string(submission.reduce_op) +
                                              " is unknown, or not 0 where nothing is reduced");
  }
  if (uses_shards(submission.operation) && target.spec.shards == nullptr) {
    return Status(Code::kInvalidArgument, what() + "a world of " + std::to_string(job.spec.rank_node.size()) +
                                              " does not divide the bucket's " +
                                              std::to_string(target.spec.elements) +
                                              " elements into shards: pad its last layer to a multiple");
  }
  if (!is_loss_scale(submission.scale)) {
    return Status(Code::kInvalidArgument, what() + "the scale " + not_a_loss_scale(submission.scale));
  }
  if (broadcast ? submission.root >= job.spec.rank_node.size() : submission.root != 0) {
    return Status(Code::kInvalidArgument,
                  what() + "root " + std::to_string(submission.root) + " is not a rank of a world of " +
                      std::to_string(job.spec.rank_node.size()) + ", or not 0 where there is no root");
  }
  if (!reserved_is_zero(submission)) {
    return Status(Code::kInvalidArgument, what() + "reserved fields are not zero: the client is newer");
  }
  if ((submission.flags & layout::kSubmissionFlush) != 0 && submission.operation != layout::kOpAllreduce) {
    return Status(Code::kInvalidArgument, what() + "only an allreduce can be a flush");
  }
  return ok_status();
}

void Core::submit(Job& job, uint32_t local, const layout::Submission& submission) {
  Bucket* bucket = nullptr;
  const Status status = check(job, local, submission, &bucket);
  if (!status.ok()) {
    fail(job, status.with_context(rank_label(job, local) + " has submitted nonsense"));
    return;
  }
  Signature signature;
  signature.operation = submission.operation;
  signature.dtype = bucket->dtype;
  signature.elements = bucket->spec.elements;
  signature.layout = uses_shards(submission.operation) ? bucket->shard_layout : bucket->layout;
  signature.root = submission.root;
  signature.flush = (submission.flags & layout::kSubmissionFlush) != 0;
  signature.direct = bucket->direct != nullptr && submission.operation == layout::kOpAllreduce;
  // Where nothing is reduced the reduction means nothing, and the scale where there is no residual.
  const bool allreduce = submission.operation == layout::kOpAllreduce;
  const bool reduces = allreduce || submission.operation == layout::kOpReduceScatter;
  signature.reduce_op = reduces ? submission.reduce_op : 0;
  signature.scale_bits = std::bit_cast<uint64_t>(allreduce ? submission.scale : 1.0);

  RankSlot& slot = bucket->ranks[local];
  slot.pending = true;
  slot.last = submission.sequence;
  slot.user_data = submission.user_data;
  const uint64_t now = clock_.now_ns();
  Gather& gather = bucket->gather;
  if (gather.count == 0) {
    gather.sequence = submission.sequence;
    gather.first_ns = now;
    gather.first_rank = local;
    gather.signature = signature;
    start_clocks(*bucket, now);
  } else if (signature != gather.signature) {
    fail(job, Status(Code::kMismatch, operation_label(*bucket, submission.sequence) + ": " +
                                          rank_label(job, gather.first_rank) + " asks for " +
                                          describe(gather.signature) + ", " + rank_label(job, local) +
                                          " for " + describe(signature)));
    return;
  }
  if (const uint64_t late = now - gather.first_ns; late > 0) {
    RankState& rank = job.ranks[local];
    ++rank.late_count;
    rank.late_total_ns += late;
    rank.late_max_ns = std::max(rank.late_max_ns, late);
  }
  ++gather.count;
  if (check_left(*bucket)) {
    begin_if_ready(*bucket);
  }
}

// The epoch has ended: an answer to whatever is asked.
void Core::refuse(Job& job, uint32_t local, const layout::Submission& submission) {
  layout::Completion completion{};
  completion.user_data = submission.user_data;
  completion.sequence = submission.sequence;
  completion.bucket = submission.bucket;
  completion.status = GW_ERR_ABORTED;
  push_completion(job.ranks[local], completion);
}

void Core::push_completion(RankState& rank, const layout::Completion& completion) {
  if (rank.broken) {
    return;
  }
  bool wake = false;
  if (rank.completions.push(completion, &wake) != layout::RingState::kOk) {
    rank.broken = true;  // a client that follows the rules has room for every answer
    for (const std::unique_ptr<Job>& job : jobs_) {
      for (uint32_t local = 0; local < job->ranks.size(); ++local) {
        if (&job->ranks[local] == &rank) {
          fail(*job, Status(Code::kCorrupt, rank_label(*job, local) +
                                                " has no room in its ring of completions, or its counter "
                                                "makes no sense"));
        }
      }
    }
  } else if (wake) {
    wake_rank(rank);
  }
}

void Core::wake_rank(RankState& rank) {
  if (rank.spec.bell_fd >= 0) {
    ring_bell(rank.spec.bell_fd);
  }
}

}  // namespace gradwire::engine

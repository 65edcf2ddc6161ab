// The engine measures the network with operations of its own.
#include <algorithm>
#include <bit>

#include "compress/geometry.h"
#include "daemon/engine/core.h"

namespace gradwire::engine {

namespace {

constexpr uint32_t kEmptyBucket = kFirstProbeBucket;
constexpr uint32_t kFullBucket = kFirstProbeBucket + 1;
// Measured operations. One goes before them: it connects, and waits until every node is there.
constexpr uint32_t kEmptyRounds = 4;
constexpr uint32_t kFullRounds = 3;

// For chunks that are cut evenly: a small rest behind a whole segment would travel as slowly as the segment,
// and whoever reads the times does not know of it.
uint32_t even_message(uint64_t elements, uint32_t nodes, size_t max_payload) {
  constexpr uint64_t kChunkStep = 64;  // elements, by which chunks differ
  const uint64_t chunk = (elements / nodes + kChunkStep) * sizeof(float);
  const uint64_t segments = std::max<uint64_t>(1, (chunk + max_payload - 1) / max_payload);
  const uint64_t even = (chunk / segments + kChunkStep * sizeof(float));
  return static_cast<uint32_t>(
      std::clamp<uint64_t>(even, std::min<uint64_t>(compress::kMinMessageBytes, max_payload), max_payload));
}

uint32_t rounds_of(const Bucket& bucket) {
  return bucket.id == kEmptyBucket ? kEmptyRounds : kFullRounds;
}

}  // namespace

Status Core::add_probe_buckets(Job& job) {
  job.probe_memory = std::make_unique<float[]>(2 * kProbeElements);
  for (const uint32_t number : {kEmptyBucket, kFullBucket}) {
    BucketSpec spec;
    spec.job = job.spec.id;
    spec.bucket = number;
    spec.name = "probe";
    spec.elements = number == kEmptyBucket ? 0 : kProbeElements;
    compress::BucketShape shape;
    shape.nodes = job.spec.nodes;
    shape.node = job.spec.node_index;
    shape.max_message_bytes = even_message(spec.elements, job.spec.nodes, transport_.max_payload());
    if (spec.elements > 0) {
      shape.layers.push_back({"probe", spec.elements});
    }
    Result<std::unique_ptr<compress::BucketReducer>> reducer =
        compress::make_exact_reducer(shape, compress::Dtype::kFloat32);
    GRADWIRE_RETURN_IF_ERROR(reducer.status());
    spec.reducer = std::move(reducer).value();
    spec.gradients.assign(job.ranks.size(), job.probe_memory.get());
    spec.result = job.probe_memory.get() + kProbeElements;
    GRADWIRE_RETURN_IF_ERROR(take_bucket(spec));
  }
  job.probe_ready = true;
  return ok_status();
}

Status Core::probe(JobId id, Engine::Probed done) {
  Job* const job = find(id);
  if (job == nullptr || job->failed || job->probe != nullptr) {
    return {Code::kUnavailable, "job " + std::to_string(id) + " is over, or measures already"};
  }
  if (!job->probe_ready) {
    GRADWIRE_RETURN_IF_ERROR(add_probe_buckets(*job).with_context("the network's measurement"));
  }
  job->probe = std::make_unique<Probe>();
  job->probe->done = std::move(done);
  Bucket& empty = *job->buckets.find(kEmptyBucket);
  job->probe->left = kEmptyRounds + 1;
  if (empty.operation.state == OperationState::kIdle) {
    submit_probe(empty);
  }
  return ok_status();
}

void Core::submit_probe(Bucket& bucket) {
  Gather& gather = bucket.gather;
  gather.sequence = bucket.operation.sequence + 1;
  gather.count = static_cast<uint32_t>(bucket.job->ranks.size());
  gather.first_ns = clock_.now_ns();
  gather.signature = Signature();
  gather.signature.operation = layout::kOpAllreduce;
  gather.signature.dtype = bucket.dtype;
  gather.signature.scale_bits = std::bit_cast<uint64_t>(1.0);
  gather.signature.elements = bucket.spec.elements;
  gather.signature.layout = bucket.layout;
  start(bucket);
}

// Inside the last coroutine, as complete().
void Core::probe_ended(Bucket& bucket) {
  Probe& probe = *bucket.job->probe;
  const uint64_t now = clock_.now_ns();
  const uint64_t cpu = clock_.cpu_ns();
  const uint32_t rounds = rounds_of(bucket);
  if (probe.left == rounds + 1) {
    probe.since_ns = now;
    probe.since_cpu_ns = cpu;
  }
  --probe.left;
  if (probe.left > 0) {
    return;
  }
  const bool empty = bucket.id == kEmptyBucket;
  (empty ? probe.times.empty_ns : probe.times.full_ns) = (now - probe.since_ns) / rounds;
  (empty ? probe.times.empty_cpu_ns : probe.times.full_cpu_ns) = (cpu - probe.since_cpu_ns) / rounds;
}

// From retire(): the bucket's operation is over, sends included.
void Core::go_on_probing(Bucket& bucket) {
  Job& job = *bucket.job;
  if (job.failed || job.probe == nullptr) {
    return;
  }
  if (job.probe->left > 0) {
    submit_probe(bucket);
    return;
  }
  if (bucket.id == kEmptyBucket) {
    job.probe->left = kFullRounds + 1;
    submit_probe(*job.buckets.find(kFullBucket));
    return;
  }
  const std::unique_ptr<Probe> probe = std::move(job.probe);
  probe->done(probe->times);
}

}  // namespace gradwire::engine

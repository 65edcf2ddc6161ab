// Jobs and buckets come and go.
#include <algorithm>
#include <cstring>

#include "config/base/one_line.h"
#include "daemon/engine/collectives.h"
#include "daemon/engine/core.h"
#include "daemon/engine/shards.h"

namespace gradwire::engine {

namespace {

uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0xff51afd7ed558ccdu;
  return hash ^ (hash >> 32);
}

// Equal on two nodes if they cut and code the bucket alike.
uint64_t layout_hash(const compress::BucketReducer& reducer, uint32_t broadcast_bytes) {
  const compress::Geometry& geometry = reducer.geometry();
  uint64_t hash = mix(geometry.chunks(), broadcast_bytes);
  hash = mix(hash, static_cast<uint64_t>(reducer.dtype()));
  hash = mix(hash, reducer.wire_variant());
  for (const char letter : reducer.codec_name()) {
    hash = mix(hash, static_cast<unsigned char>(letter));
  }
  for (uint32_t chunk = 0; chunk < geometry.chunks(); ++chunk) {
    hash = mix(hash, geometry.segments(chunk).size());
    for (const compress::Segment& segment : geometry.segments(chunk)) {
      hash = mix(mix(mix(hash, segment.first_element), segment.elements), segment.max_bytes);
    }
  }
  return hash;
}

}  // namespace

FramePool& frame_pool(Core& core) {
  return core.frames();
}

uint64_t epoch_hash(const EpochKey& key) {
  uint64_t word;
  std::memcpy(&word, key.data(), sizeof(word));
  return word;
}

std::string node_label(const Job& job, uint32_t node) {
  std::string label = "node " + std::to_string(node);
  if (node < job.spec.members.size() && !job.spec.members[node].name.empty()) {
    label += " (" + job.spec.members[node].name + ")";
  }
  return label;
}

std::string bucket_label(const std::string& name, uint32_t bucket) {
  constexpr size_t kShown = 100;  // bytes
  const std::string shown = name.empty() ? "" : " \"" + std::string(beginning(name, kShown)) + "\"";
  return "bucket" + shown + " (" + std::to_string(bucket) + ")";
}

std::string operation_label(const Bucket& bucket, uint64_t sequence) {
  return bucket_label(bucket.spec.name, bucket.id) + ", operation " + std::to_string(sequence);
}

Core::Core(Clock& clock, transport::Transport& transport, Listener& listener, const EngineOptions& options)
    : clock_(clock),
      transport_(transport),
      listener_(listener),
      options_(options),
      window_(std::max(transport.send_window(), 1u)),
      broadcast_bytes_(static_cast<uint32_t>(
          std::max<size_t>(std::min<size_t>(transport.max_payload(), 1u << 30) & ~size_t{63}, 1))),
      pool_(*this, transport.max_payload()) {
  transport_.set_receiver(this);
  if (!transport_.hosts().empty()) {
    // Nobody yet. What fails here fails for the first job with neighbours, too, and is its cause.
    [[maybe_unused]] const Status status = admit({});
  }
}

Core::~Core() {
  while (!jobs_.empty()) {
    remove_job(jobs_.back()->spec.id);
  }
}

Job* Core::find(JobId id) const {
  for (const std::unique_ptr<Job>& job : jobs_) {
    if (job->spec.id == id) {
      return job.get();
    }
  }
  return nullptr;
}

Bucket* Core::find(JobId id, uint32_t number) const {
  const Job* const job = find(id);
  return job == nullptr ? nullptr : job->buckets.find(number);
}

Job* Core::find_key(const EpochKey& key) const {
  Job* const job = by_key_.find(epoch_hash(key));
  return job != nullptr && job->spec.key == key ? job : nullptr;
}

Bucket* Core::make_bucket(Job& job, uint32_t id) {
  job.storage.push_back(std::make_unique<Bucket>(&job, id));
  Bucket* const bucket = job.storage.back().get();
  for (uint32_t node = 0; node < job.spec.nodes; ++node) {
    bucket->grant_sends.emplace_back(*this, bucket, node);
  }
  job.buckets.insert(id, bucket);
  if (job.any_left && !bucket->own) {
    bucket->last_allowed = 0;
    bucket->left_rank = job.left_rank;
  }
  return bucket;
}

void Core::free_bucket(Bucket& bucket) {
  Job& job = *bucket.job;
  drop_early(bucket);
  hand_back(bucket.spec);
  job.buckets.erase(bucket.id);
  std::erase_if(job.storage,
                [&bucket](const std::unique_ptr<Bucket>& held) { return held.get() == &bucket; });
}

Status Core::add_job(JobSpec spec) {
  const uint32_t nodes = spec.nodes;
  if (spec.id == 0 || nodes == 0 || spec.node_index >= nodes || spec.local_ranks.empty() ||
      spec.rank_node.size() < nodes) {
    return Status(Code::kInvalidArgument,
                  "job \"" + spec.name + "\": node " + std::to_string(spec.node_index) + " of " +
                      std::to_string(nodes) + " with " + std::to_string(spec.local_ranks.size()) +
                      " local ranks is not a ring");
  }
  for (const uint32_t node : spec.rank_node) {
    if (node >= nodes) {
      return Status(Code::kInvalidArgument, "job \"" + spec.name + "\": a rank is on node " +
                                                std::to_string(node) + " of " + std::to_string(nodes));
    }
  }
  for (const LocalRank& rank : spec.local_ranks) {
    if (rank.rank >= spec.rank_node.size() || spec.rank_node[rank.rank] != spec.node_index ||
        rank.session == nullptr) {
      return Status(Code::kInvalidArgument, "job \"" + spec.name + "\": rank " + std::to_string(rank.rank) +
                                                " is not one of this node's or has no session");
    }
  }
  const auto missing = [](const JobNode& node) { return node.address.empty(); };
  if (nodes > 1 &&
      (spec.members.size() != nodes || std::any_of(spec.members.begin(), spec.members.end(), missing))) {
    return Status(Code::kInvalidArgument, "job \"" + spec.name + "\": not each of its " +
                                              std::to_string(nodes) + " nodes has an address");
  }
  if (find(spec.id) != nullptr || by_key_.find(epoch_hash(spec.key)) != nullptr) {
    return Status(Code::kAlreadyExists, "job \"" + spec.name + "\": its id or its key is in use");
  }
  compress::BucketShape shape;
  shape.nodes = nodes;
  shape.max_message_bytes = static_cast<uint32_t>(transport_.max_payload());
  Result<std::unique_ptr<compress::BucketReducer>> barrier =
      compress::make_exact_reducer(shape, compress::Dtype::kFloat32);
  if (!barrier.ok()) {
    return barrier.status().with_context("the barrier of job \"" + spec.name + "\"");
  }

  auto job = std::make_unique<Job>(std::move(spec));
  job->left_node = (job->spec.node_index + nodes - 1) % nodes;
  job->right_node = (job->spec.node_index + 1) % nodes;
  for (const LocalRank& rank : job->spec.local_ranks) {
    auto* const base = reinterpret_cast<std::byte*>(rank.session);
    RankState state;
    state.spec = rank;
    // Offsets and capacity are the layout's constants: what the client may have written is not asked.
    state.submissions = layout::RingConsumer<layout::Submission>(
        &rank.session->submissions, reinterpret_cast<layout::Submission*>(base + layout::kSubmissionOffset),
        layout::kRingCapacity);
    state.completions = layout::RingProducer<layout::Completion>(
        &rank.session->completions, reinterpret_cast<layout::Completion*>(base + layout::kCompletionOffset),
        layout::kRingCapacity);
    job->ranks.push_back(std::move(state));
  }
  const JobId id = job->spec.id;
  const size_t locals = job->ranks.size();
  by_key_.insert(epoch_hash(job->spec.key), job.get());
  jobs_.push_back(std::move(job));
  ++jobs_version_;

  BucketSpec bucket;
  bucket.job = id;
  bucket.bucket = layout::kBarrierBucket;
  bucket.name = "barrier";
  bucket.reducer = std::move(barrier).value();
  bucket.gradients.resize(locals, nullptr);
  Status status = add_bucket(std::move(bucket));
  if (status.ok()) {
    status = admit_members();
  }
  if (!status.ok()) {
    remove_job(id);
  }
  return status;
}

Status Core::check(const Job& job, const BucketSpec& spec) const {
  const std::string label = bucket_label(spec.name, spec.bucket);
  if (spec.reducer == nullptr || spec.reducer->geometry().chunks() != job.spec.nodes) {
    return Status(Code::kInvalidArgument,
                  label + ": it is not cut for the ring's " + std::to_string(job.spec.nodes) + " nodes");
  }
  uint64_t elements = 0;
  for (uint32_t chunk = 0; chunk < job.spec.nodes; ++chunk) {
    const auto segments = spec.reducer->geometry().segments(chunk);
    for (const compress::Segment& segment : segments) {
      elements += segment.elements;
      if (segment.max_bytes > transport_.max_payload()) {
        return Status(Code::kInvalidArgument, label + ": a segment of " + std::to_string(segment.max_bytes) +
                                                  " bytes exceeds the transport's " +
                                                  std::to_string(transport_.max_payload()));
      }
    }
    if (segments.empty()) {
      return Status(Code::kInvalidArgument, label + ": chunk " + std::to_string(chunk) + " has no segment");
    }
  }
  const bool missing =
      std::find(spec.gradients.begin(), spec.gradients.end(), nullptr) != spec.gradients.end();
  if (elements != spec.elements || spec.gradients.size() != job.ranks.size() ||
      (elements != 0 && (missing || spec.result == nullptr))) {
    return Status(Code::kInvalidArgument, label + ": " + std::to_string(spec.elements) + " elements and " +
                                              std::to_string(spec.gradients.size()) +
                                              " gradient regions do not fit " + std::to_string(elements) +
                                              " elements in segments and " +
                                              std::to_string(job.ranks.size()) + " local ranks");
  }
  if (is_direct(job, spec) && !spec.reducer->collects()) {
    return Status(Code::kInvalidArgument,
                  label + ": its codec " + std::string(spec.reducer->codec_name()) +
                      " cannot sum shares that come straight to their owner; use algorithm ring");
  }
  if (spec.shards != nullptr) {
    return check_shards(job, spec, transport_.max_payload());
  }
  return ok_status();
}

Status Core::add_bucket(BucketSpec spec) {
  Status status = take_bucket(spec);
  if (!status.ok()) {
    hand_back(spec);
  }
  return status;
}

// Takes the spec over if all is well.
Status Core::take_bucket(BucketSpec& spec) {
  Job* const job = find(spec.job);
  if (job == nullptr) {
    return Status(Code::kNotFound, "there is no job " + std::to_string(spec.job));
  }
  Bucket* bucket = job->buckets.find(spec.bucket);
  if (bucket != nullptr && (bucket->spec.reducer != nullptr || bucket->removed)) {
    return Status(Code::kAlreadyExists, "bucket " + std::to_string(spec.bucket) + " exists already");
  }
  GRADWIRE_RETURN_IF_ERROR(check(*job, spec));
  const bool direct = is_direct(*job, spec);
  if (direct) {
    GRADWIRE_RETURN_IF_ERROR(admit_all(*job));
  }
  if (bucket == nullptr) {
    bucket = make_bucket(*job, spec.bucket);
  } else {
    --job->announced;
  }
  bucket->spec = std::move(spec);
  bucket->shown_name = std::make_shared<const std::string>(
      beginning(bucket->spec.name, sizeof(layout::BucketRecord::name) - 1));
  const compress::BucketReducer& reducer = *bucket->spec.reducer;
  set_reducer(*bucket, direct);
  bucket->dtype = static_cast<uint8_t>(reducer.dtype());
  bucket->dtype_bytes = static_cast<uint32_t>(compress::dtype_size(reducer.dtype()));
  if (bucket->spec.shards != nullptr) {
    bucket->shard_layout = layout_hash(*bucket->spec.shards, broadcast_bytes_);
    bucket->small_shards = all_small(bucket->spec.shards->geometry());
  }
  bucket->ranks.resize(job->ranks.size());
  bucket->operation.next_segment.assign(2 * size_t{job->spec.nodes}, 0);
  return ok_status();
}

// What follows from spec.reducer.
void Core::set_reducer(Bucket& bucket, bool direct) {
  const compress::BucketReducer& reducer = *bucket.spec.reducer;
  const JobSpec& job = bucket.job->spec;
  bucket.layout = layout_hash(reducer, broadcast_bytes_);
  bucket.small = all_small(reducer.geometry());
  bucket.direct.reset();
  if (direct) {
    bucket.direct = std::make_unique<DirectState>();
    const size_t own = reducer.geometry().segments(owned_chunk(job.node_index, job.nodes)).size();
    bucket.direct->granted.resize(job.nodes);
    bucket.direct->summed.resize(own);
    bucket.direct->not_finite.resize(own);
    bucket.direct->held.resize(own * job.nodes);
  }
}

}  // namespace gradwire::engine

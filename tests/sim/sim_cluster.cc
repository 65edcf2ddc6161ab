#include "tests/sim/sim_cluster.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace gradwire::sim {

namespace {

std::shared_ptr<std::byte> make_session() {
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(4096, layout::kSessionBytes));
  std::memset(memory, 0, layout::kSessionBytes);
  return {memory, [](std::byte* freed) { std::free(freed); }};
}

}  // namespace

const layout::Completion* Rank::completion(uint32_t bucket) const {
  const auto sequence = sequences.find(bucket);
  const auto found = std::find_if(done.rbegin(), done.rend(), [&](const layout::Completion& candidate) {
    return candidate.bucket == bucket && sequence != sequences.end() &&
           candidate.sequence == sequence->second;
  });
  return found == done.rend() ? nullptr : &*found;
}

void Rank::open() {
  memory = make_session();
  session = reinterpret_cast<layout::SessionHeader*>(memory.get());
  submissions = layout::RingProducer<layout::Submission>(
      &session->submissions, reinterpret_cast<layout::Submission*>(memory.get() + layout::kSubmissionOffset),
      layout::kRingCapacity);
  completions = layout::RingConsumer<layout::Completion>(
      &session->completions, reinterpret_cast<layout::Completion*>(memory.get() + layout::kCompletionOffset),
      layout::kRingCapacity);
}

void Rank::collect() {
  layout::Completion completion;
  while (completions.pop(&completion) == layout::RingState::kOk) {
    done.push_back(completion);
  }
}

Cluster::Cluster(const ClusterOptions& options) : options_(options), network_(options.network), key_(16) {
  for (size_t i = 0; i < key_.size(); ++i) {
    key_[i] = static_cast<std::byte>(0x40 + i);
  }
  for (uint32_t i = 0; i < options_.nodes; ++i) {
    nodes_.push_back(std::make_unique<Node>());
    nodes_[i]->name = std::string("node-").append(std::to_string(i));
    nodes_[i]->transport = network_.create_node(nodes_[i]->name);
    nodes_[i]->engine =
        std::make_unique<engine::Engine>(*this, *nodes_[i]->transport, *nodes_[i], options_.engine);
  }
  ranks_.resize(world());
  for (uint32_t i = 0; i < world(); ++i) {
    Rank& rank = ranks_[i];
    rank.rank = i;
    rank.node = options_.rank_node.empty() ? i / options_.local_ranks : options_.rank_node[i];
    rank.open();
  }
  for (uint32_t i = 0; i < options_.nodes; ++i) {
    engine::JobSpec spec;
    spec.id = kJob;
    spec.name = "sim";
    std::memcpy(spec.key.data(), key_.data(), key_.size());
    spec.nodes = options_.nodes;
    spec.node_index = i;
    for (const Rank& rank : ranks_) {
      spec.rank_node.push_back(rank.node);
      if (rank.node == i) {
        engine::LocalRank local;
        local.rank = rank.rank;
        local.session = rank.session;
        local.memory = rank.memory;
        spec.local_ranks.push_back(std::move(local));
      }
    }
    for (const auto& node : nodes_) {
      spec.members.push_back({node->name, node->transport->address(), {}});
    }
    const Status status = nodes_[i]->engine->add_job(std::move(spec));
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

Cluster::~Cluster() {
  if (options_.expect_equal_results) {
    EXPECT_TRUE(differing_.empty()) << "the nodes' results of " << differing_.size() << " operations differ";
  }
  for (const auto& node : nodes_) {
    node->engine.reset();
    node->transport.reset();
  }
}

void Cluster::add_bucket(uint32_t bucket, const BucketShape& shape) {
  for (uint32_t i = 0; i < options_.nodes; ++i) {
    add_bucket_at(i, bucket, shape);
  }
}

void Cluster::add_bucket_at(uint32_t index, uint32_t bucket, const BucketShape& shape) {
  Node& node = *nodes_[index];
  compress::BucketShape cut;
  cut.nodes = options_.nodes;
  cut.node = index;
  cut.direct = shape.algorithm == engine::Algorithm::kDirect;
  cut.max_message_bytes = static_cast<uint32_t>(node.transport->max_payload());
  std::vector<compress::CodecSettings> settings;
  uint64_t elements = 0;
  for (size_t i = 0; i < shape.layers.size(); ++i) {
    cut.layers.push_back({std::string("layer").append(std::to_string(i)), shape.layers[i]});
    settings.push_back(shape.settings);
    settings.back().codec = shape.codec;
    elements += shape.layers[i];
  }
  Result<std::unique_ptr<compress::BucketReducer>> reducer =
      shape.codec.empty() ? compress::make_exact_reducer(cut, shape.dtype)
                          : compress::make_compressor(cut, settings);
  ASSERT_TRUE(reducer.ok()) << reducer.status().message();
  if (shape.wrap) {
    reducer = shape.wrap(index, std::move(reducer).value());
  }
  const size_t bytes = elements * compress::dtype_size(shape.dtype);
  node.reducers[bucket] = reducer->get();
  node.results[bucket] = std::make_shared<Region>(bytes);

  engine::BucketSpec spec;
  spec.job = kJob;
  spec.bucket = bucket;
  spec.name = shape.name;
  spec.reducer = std::move(reducer).value();
  spec.algorithm = shape.algorithm;
  if (elements % world() == 0) {
    if (shape.shard_message_bytes != 0) {
      cut.max_message_bytes = shape.shard_message_bytes;
    }
    Result<std::unique_ptr<compress::BucketReducer>> shards =
        compress::make_shard_reducer(cut, spec.reducer->dtype(), rank_chunks());
    ASSERT_TRUE(shards.ok()) << shards.status().message();
    spec.shards = std::move(shards).value();
  }
  spec.retired = [&node, bucket](std::unique_ptr<compress::BucketReducer> gone) {
    node.retired[bucket] = std::move(gone);
  };
  spec.elements = elements;
  spec.result = node.results[bucket]->data();
  spec.memory.push_back(node.results[bucket]);
  for (Rank& rank : ranks_) {
    if (rank.node == index) {
      rank.gradients[bucket] = std::make_shared<Region>(bytes);
      spec.gradients.push_back(rank.gradients[bucket]->data());
      spec.memory.push_back(rank.gradients[bucket]);
    }
  }
  const Status status = node.engine->add_bucket(std::move(spec));
  ASSERT_TRUE(status.ok()) << status.message();
}

std::vector<uint32_t> Cluster::rank_chunks() const {
  std::vector<uint32_t> chunks;
  for (const Rank& rank : ranks_) {
    chunks.push_back((rank.node + 1) % options_.nodes);
  }
  return chunks;
}

layout::Submission Cluster::submission(uint32_t index, uint32_t bucket, const Request& request) {
  Rank& rank = ranks_[index];
  layout::Submission submission{};
  submission.user_data = ++user_data_;
  submission.sequence = ++rank.sequences[bucket];
  submission.scale = request.scale;
  submission.bucket = bucket;
  submission.root = request.root;
  submission.operation = request.operation;
  submission.reduce_op = static_cast<uint8_t>(request.reduce_op);
  submission.flags = request.flags;
  const auto reducer = nodes_[rank.node]->reducers.find(bucket);
  if (reducer != nodes_[rank.node]->reducers.end()) {
    submission.dtype = static_cast<uint8_t>(reducer->second->dtype());
  }
  return submission;
}

void Cluster::submit(uint32_t rank, uint32_t bucket, const Request& request) {
  submit_raw(rank, submission(rank, bucket, request));
}

void Cluster::submit_all(uint32_t bucket, const Request& request) {
  for (uint32_t i = 0; i < world(); ++i) {
    submit(i, bucket, request);
  }
}

void Cluster::submit_raw(uint32_t rank, const layout::Submission& submission) {
  bool wake = false;
  ASSERT_EQ(ranks_[rank].submissions.push(submission, &wake), layout::RingState::kOk);
}

void Cluster::collect() {
  for (Rank& rank : ranks_) {
    rank.collect();
  }
}

void Cluster::compare_results() {
  for (const auto& node : nodes_) {
    if (node->engine == nullptr) {
      continue;
    }
    for (const engine::ResultSample& sample : node->engine->take_results(kJob)) {
      const std::pair<uint32_t, uint64_t> operation{sample.bucket, sample.sequence};
      const auto [seen, first] = result_hashes_.try_emplace(operation, sample.hash);
      compared_ += first ? 0 : 1;
      if (seen->second != sample.hash) {
        differing_.insert(operation);
      }
    }
  }
}

bool Cluster::round() {
  size_t work = 0;
  for (const auto& node : nodes_) {
    if (node->engine != nullptr) {
      work += node->engine->poll();
      if (failure_.ok() && !node->failures.empty()) {
        failure_ = node->failures.front();
      }
    }
  }
  if (!failure_.ok() && options_.abort_on_failure) {
    for (const auto& node : nodes_) {
      if (node->engine != nullptr) {
        node->engine->abort_job(kJob, failure_);
      }
    }
  }
  collect();
  compare_results();
  return work > 0;
}

bool Cluster::run_until(const std::function<bool()>& done, uint64_t limit_ns) {
  const uint64_t end = now_ns() + limit_ns;
  for (;;) {
    while (round()) {
    }
    if (done()) {
      return true;
    }
    uint64_t next = network_.next_event_ns().value_or(UINT64_MAX);
    for (const auto& node : nodes_) {
      if (node->engine != nullptr) {
        next = std::min(next, node->engine->next_deadline_ns());
      }
    }
    if (next == UINT64_MAX) {
      return false;
    }
    if (next > end) {
      network_.advance_to(end);
      return false;
    }
    network_.advance_to(next);
  }
}

void Cluster::settle() {
  for (;;) {
    while (round()) {
    }
    if (!network_.step()) {
      return;
    }
  }
}

bool Cluster::completed(uint32_t bucket) {
  return std::all_of(ranks_.begin(), ranks_.end(), [&](const Rank& rank) {
    return nodes_[rank.node]->engine == nullptr || rank.completion(bucket) != nullptr;
  });
}

bool Cluster::finish(uint32_t bucket) {
  run_until([&] { return completed(bucket); });
  for (const Rank& rank : ranks_) {
    const layout::Completion* const completion = rank.completion(bucket);
    if (completion == nullptr || completion->status != 0) {
      ADD_FAILURE() << "bucket " << bucket << " did not complete on rank " << rank.rank << ": "
                    << (failure_.ok() ? "still in flight" : failure_.message());
      return false;
    }
  }
  return true;
}

void Cluster::kill(uint32_t index) {
  network_.kill(nodes_[index]->name);
  nodes_[index]->engine.reset();
  nodes_[index]->transport.reset();
}

void fill_integers(Cluster& cluster, uint32_t bucket, uint32_t step) {
  for (uint32_t i = 0; i < cluster.world(); ++i) {
    std::minstd_rand random(step * 100 + i + 1);
    for (float& value : cluster.rank(i).gradients[bucket]->as<float>()) {
      value = static_cast<float>(static_cast<int32_t>(random() % 2001) - 1000);
    }
  }
}

std::string sentence(Cluster& cluster, uint32_t node, uint64_t sequence) {
  std::vector<std::string> names;
  for (uint32_t n = 0; n < cluster.nodes(); ++n) {
    names.push_back(cluster.node(n).name);
  }
  return engine::describe(cluster.node(node).engine->inspect(Cluster::kJob, 1, sequence), names);
}

std::vector<engine::ProbeTimes> probe(Cluster& cluster) {
  std::vector<std::optional<engine::ProbeTimes>> answers(cluster.nodes());
  for (uint32_t n = 0; n < cluster.nodes(); ++n) {
    const Status begun = cluster.node(n).engine->probe(
        Cluster::kJob, [&answers, n](const engine::ProbeTimes& times) { answers[n] = times; });
    EXPECT_TRUE(begun.ok()) << begun.message();
  }
  EXPECT_TRUE(cluster.run_until([&answers] {
    return std::all_of(answers.begin(), answers.end(), [](const auto& answer) { return answer.has_value(); });
  }));
  cluster.settle();
  std::vector<engine::ProbeTimes> times;
  for (const auto& answer : answers) {
    times.push_back(answer.value_or(engine::ProbeTimes{}));
  }
  return times;
}

}  // namespace gradwire::sim

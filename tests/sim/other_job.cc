#include "tests/sim/other_job.h"

#include <gtest/gtest.h>

namespace gradwire::sim {

namespace {

int32_t gradient(uint32_t rank, uint32_t bucket, uint64_t sequence, size_t element) {
  return static_cast<int32_t>(element % 1000 + 17 * bucket + 5 * sequence + rank);
}

}  // namespace

OtherJob::OtherJob(Cluster& cluster, engine::JobId id, uint32_t nodes)
    : cluster_(cluster), id_(id), nodes_(nodes == 0 ? cluster.nodes() : nodes), ranks_(nodes_) {
  for (uint32_t i = 0; i < nodes_; ++i) {
    ranks_[i].rank = ranks_[i].node = i;
    ranks_[i].open();
    engine::JobSpec spec;
    spec.id = id_;
    spec.name = "other";
    spec.key[0] = static_cast<std::byte>(id_);
    spec.nodes = nodes_;
    spec.node_index = i;
    for (uint32_t n = 0; n < nodes_; ++n) {
      spec.rank_node.push_back(n);
      spec.members.push_back({cluster.node(n).name, cluster.node(n).transport->address(), {}});
    }
    engine::LocalRank local;
    local.rank = i;
    local.session = ranks_[i].session;
    local.memory = ranks_[i].memory;
    spec.local_ranks.push_back(std::move(local));
    const Status status = cluster.node(i).engine->add_job(std::move(spec));
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

OtherJob::~OtherJob() {
  for (uint32_t i = 0; i < nodes_; ++i) {
    if (cluster_.node(i).engine != nullptr) {
      cluster_.node(i).engine->remove_job(id_);
    }
  }
}

void OtherJob::add_bucket(uint32_t bucket, uint64_t elements) {
  for (uint32_t i = 0; i < nodes_; ++i) {
    compress::BucketShape shape;
    shape.layers.push_back({"layer", elements});
    shape.nodes = nodes_;
    shape.max_message_bytes = static_cast<uint32_t>(cluster_.node(i).transport->max_payload());
    results_[bucket].push_back(std::make_shared<Region>(elements * sizeof(int32_t)));
    ranks_[i].gradients[bucket] = std::make_shared<Region>(elements * sizeof(int32_t));
    engine::BucketSpec spec;
    spec.job = id_;
    spec.bucket = bucket;
    spec.name = "integers";
    spec.reducer = std::move(compress::make_exact_reducer(shape, compress::Dtype::kInt32)).value();
    spec.elements = elements;
    spec.gradients.push_back(ranks_[i].gradients[bucket]->data());
    spec.result = results_[bucket][i]->data();
    spec.memory = {ranks_[i].gradients[bucket], results_[bucket][i]};
    const Status status = cluster_.node(i).engine->add_bucket(std::move(spec));
    ASSERT_TRUE(status.ok()) << status.message();
  }
}

void OtherJob::submit_all(uint32_t bucket) {
  for (Rank& rank : ranks_) {
    layout::Submission submission{};
    submission.sequence = ++rank.sequences[bucket];
    submission.scale = 1;
    submission.bucket = bucket;
    submission.operation = bucket == 0 ? layout::kOpBarrier : layout::kOpAllreduce;
    if (bucket != 0) {
      submission.dtype = static_cast<uint8_t>(compress::Dtype::kInt32);
      auto values = rank.gradients[bucket]->as<int32_t>();
      for (size_t k = 0; k < values.size(); ++k) {
        values[k] = gradient(rank.rank, bucket, submission.sequence, k);
      }
    }
    bool wake = false;
    ASSERT_EQ(rank.submissions.push(submission, &wake), layout::RingState::kOk);
  }
}

bool OtherJob::complete(uint32_t bucket) {
  for (Rank& rank : ranks_) {
    rank.collect();
    if (rank.completion(bucket) == nullptr) {
      return false;
    }
  }
  for (Rank& rank : ranks_) {
    EXPECT_EQ(rank.completion(bucket)->status, 0) << "rank " << rank.rank << ", bucket " << bucket;
    if (bucket == 0) {
      continue;
    }
    const auto values = results_[bucket][rank.node]->as<int32_t>();
    size_t wrong = 0;
    for (size_t k = 0; k < values.size(); ++k) {
      int32_t sum = 0;
      for (uint32_t r = 0; r < nodes_; ++r) {
        sum += gradient(r, bucket, rank.sequences[bucket], k);
      }
      wrong += values[k] != sum ? 1 : 0;
    }
    EXPECT_EQ(wrong, 0u) << "node " << rank.node << ", bucket " << bucket;
  }
  return true;
}

uint64_t OtherJob::run(uint32_t bucket, uint32_t steps, const std::function<void()>& meanwhile) {
  const uint64_t start = cluster_.now_ns();
  for (uint32_t step = 0; step < steps; ++step) {
    submit_all(bucket);
    const bool done = cluster_.run_until([&] {
      meanwhile();
      return complete(bucket);
    });
    if (!done) {
      ADD_FAILURE() << "step " << step << " of bucket " << bucket << " did not complete";
      return 0;
    }
  }
  return cluster_.now_ns() - start;
}

engine::JobSnapshot OtherJob::snapshot(uint32_t node) {
  return cluster_.node(node).engine->snapshot(id_);
}

}  // namespace gradwire::sim

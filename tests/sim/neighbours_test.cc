// Whom a transport lets in, when the engine connects, and who gets a bucket's reducer afterwards.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sim/sim_cluster.h"

namespace gradwire::sim {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// A simulated transport that knows hosts, and whose connections can fail.
class Guarded final : public transport::Transport {
 public:
  explicit Guarded(std::unique_ptr<transport::Transport> inner) : inner_(std::move(inner)) {}
  void set_receiver(transport::Receiver* receiver) override { inner_->set_receiver(receiver); }
  std::string_view name() const override { return inner_->name(); }
  std::string address() const override { return inner_->address(); }
  Result<transport::PeerId> connect(std::string_view address) override {
    ++connects;
    return refuses ? Result<transport::PeerId>(Status(Code::kUnavailable, "no route to it"))
                   : inner_->connect(address);
  }
  void disconnect(transport::PeerId peer) override { inner_->disconnect(peer); }
  void send(transport::PeerId peer, std::span<const std::byte> header, std::span<const std::byte> payload,
            transport::SendCompletion* done) override {
    inner_->send(peer, header, payload, done);
  }
  std::vector<std::string> hosts() const override { return own; }
  Status admit(std::span<const std::string> hosts) override {
    admitted.emplace_back(hosts.begin(), hosts.end());
    return answer;
  }
  size_t max_payload() const override { return inner_->max_payload(); }
  uint32_t send_window() const override { return inner_->send_window(); }
  size_t poll() override { return inner_->poll(); }
  bool arm() override { return inner_->arm(); }
  int event_fd() const override { return inner_->event_fd(); }
  transport::TransportCounters counters() const override { return inner_->counters(); }

  std::vector<std::string> own = {"10.0.0.1"};
  std::vector<std::vector<std::string>> admitted;
  Status answer;
  bool refuses = false;
  int connects = 0;

 private:
  const std::unique_ptr<transport::Transport> inner_;
};

class Neighbours : public testing::Test, public engine::Clock {
 protected:
  Neighbours() : guarded_(network_.create_node("a")), other_(network_.create_node("b")) { rank_.open(); }
  uint64_t now_ns() const override { return network_.now_ns(); }

  std::unique_ptr<engine::Engine> make_engine() {
    return std::make_unique<engine::Engine>(*this, guarded_, node_, engine::EngineOptions{});
  }
  engine::JobSpec job(engine::JobId id, std::vector<std::string> hosts) {
    engine::JobSpec spec;
    spec.id = id;
    spec.name = "training";
    spec.key[0] = static_cast<std::byte>(id);
    spec.nodes = 2;
    spec.rank_node = {0, 1};
    engine::LocalRank local;
    local.session = rank_.session;
    local.memory = rank_.memory;
    spec.local_ranks.push_back(local);
    spec.members = {{"a", "here", {}}, {"b", other_->address(), std::move(hosts)}};
    return spec;
  }
  void submit_barrier() {
    layout::Submission barrier{};
    barrier.sequence = 1;
    barrier.scale = 1;
    barrier.operation = layout::kOpBarrier;
    bool wake = false;
    ASSERT_EQ(rank_.submissions.push(barrier, &wake), layout::RingState::kOk);
  }

  transport::SimNetwork network_;
  Guarded guarded_;
  std::unique_ptr<transport::Transport> other_;
  Rank rank_;
  Node node_;
};

TEST_F(Neighbours, OnlyThoseOfTheJobsThatAreThereAreLetIn) {
  auto engine = make_engine();
  EXPECT_THAT(guarded_.admitted, ElementsAre(IsEmpty()));  // nobody at first
  guarded_.admitted.clear();
  ASSERT_TRUE(engine->add_job(job(1, {"10.0.0.3", "10.0.0.2", "10.0.0.3"})).ok());
  ASSERT_TRUE(engine->add_job(job(2, {"10.0.0.2"})).ok());  // nothing changes
  ASSERT_TRUE(engine->add_job(job(3, {"10.0.0.4", "10.0.0.2"})).ok());
  engine->abort_job(1, Status(Code::kAborted, "over"));
  engine->remove_job(1);
  engine->remove_job(2);
  engine->remove_job(3);
  EXPECT_THAT(guarded_.admitted, ElementsAre(ElementsAre("10.0.0.2", "10.0.0.3"),
                                             ElementsAre("10.0.0.2", "10.0.0.3", "10.0.0.4"),
                                             ElementsAre("10.0.0.2", "10.0.0.4"), IsEmpty()));
  guarded_.admitted.clear();
  ASSERT_TRUE(engine->add_job(job(4, {"10.0.0.9"})).ok());
  engine.reset();
  EXPECT_THAT(guarded_.admitted, ElementsAre(ElementsAre("10.0.0.9"), IsEmpty()));
}

TEST_F(Neighbours, ATransportWithoutHostsIsNotShutAtFirst) {
  guarded_.own.clear();
  auto engine = make_engine();
  EXPECT_THAT(guarded_.admitted, IsEmpty());
}

TEST_F(Neighbours, ASystemThatKeepsNobodyOutIsNoFailureButAnErrorIs) {
  guarded_.answer = Status(Code::kUnsupported, "no filter here");
  auto engine = make_engine();
  EXPECT_TRUE(engine->add_job(job(1, {"10.0.0.2"})).ok());
  guarded_.answer = Status(Code::kResourceExhausted, "too many hosts");
  const Status status = engine->add_job(job(2, {"10.0.0.3"}));
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("too many hosts"));
  EXPECT_THAT(engine->jobs(), ElementsAre(1));
}

TEST_F(Neighbours, AreConnectedWhenTheFirstOperationStarts) {
  auto engine = make_engine();
  ASSERT_TRUE(engine->add_job(job(1, {})).ok());
  engine->poll();
  EXPECT_EQ(guarded_.connects, 0);
  submit_barrier();
  engine->poll();
  EXPECT_EQ(guarded_.connects, 1);
  EXPECT_THAT(node_.failures, IsEmpty());
}

TEST_F(Neighbours, AConnectionThatFailsEndsTheJobAndNamesTheNode) {
  auto engine = make_engine();
  ASSERT_TRUE(engine->add_job(job(1, {})).ok());
  guarded_.refuses = true;
  submit_barrier();
  engine->poll();
  ASSERT_EQ(node_.failures.size(), 1u);
  EXPECT_EQ(node_.failures[0].code(), Code::kUnavailable);
  EXPECT_THAT(node_.failures[0].message(),
              AllOf(HasSubstr("\"training\""), HasSubstr("node 1 (b)"), HasSubstr("no route to it")));
  engine->abort_job(1, node_.failures[0]);
  rank_.collect();
  ASSERT_EQ(rank_.done.size(), 1u);
  EXPECT_NE(rank_.done[0].status, 0);
}

BucketShape shape_of(uint64_t elements) {
  BucketShape shape;
  shape.layers = {elements};
  shape.codec = "lads";
  shape.settings.warm_start_steps = 1;
  return shape;
}

std::vector<float> residual_of(const compress::BucketReducer& reducer) {
  const std::span<const float> residual = reducer.residual();
  return {residual.begin(), residual.end()};
}

void fill(Cluster& cluster, uint32_t bucket) {
  std::mt19937 random(7);
  for (uint32_t r = 0; r < cluster.world(); ++r) {
    for (float& value : cluster.rank(r).gradients[bucket]->as<float>()) {
      value = static_cast<float>(random() % 2001) / 1000 - 1;
    }
  }
}

TEST(Reducers, AreHandedBackWithTheirResidualsWhenTheBucketIsGone) {
  ClusterOptions options;
  options.network.max_payload = 70'000;
  options.network.bytes_per_second = 1'000'000;
  Cluster cluster(options);
  for (uint32_t bucket = 1; bucket <= 3; ++bucket) {
    cluster.add_bucket(bucket, shape_of(50'000));
    fill(cluster, bucket);
    for (int step = 0; step < 3; ++step) {
      cluster.submit_all(bucket);
      ASSERT_TRUE(cluster.finish(bucket));
    }
  }
  cluster.settle();
  std::map<uint32_t, std::vector<float>> before;
  for (uint32_t bucket = 1; bucket <= 3; ++bucket) {
    before[bucket] = residual_of(*cluster.node(0).reducers[bucket]);
    ASSERT_THAT(before[bucket], testing::Contains(testing::Ne(0.0f)));
  }
  // Removed when idle; with an operation in flight; with one that waits for a rank.
  ASSERT_TRUE(cluster.node(0).engine->remove_bucket(1, 1).ok());
  ASSERT_EQ(cluster.node(0).retired.size(), 1u);
  EXPECT_EQ(residual_of(*cluster.node(0).retired[1]), before[1]);
  EXPECT_EQ(cluster.node(0).engine->remove_bucket(1, 1).code(), Code::kNotFound);
  cluster.submit_all(2);
  cluster.submit(0, 3);
  pass(cluster, 300'000);
  ASSERT_EQ(cluster.rank(0).completion(2), nullptr);
  EXPECT_FALSE(cluster.node(0).engine->remove_bucket(1, 2).ok());
  EXPECT_EQ(cluster.node(0).retired.size(), 1u);
  cluster.node(0).engine->remove_job(Cluster::kJob);
  ASSERT_EQ(cluster.node(0).retired.size(), 3u);
  EXPECT_EQ(residual_of(*cluster.node(0).retired[2]), before[2]);
  EXPECT_EQ(residual_of(*cluster.node(0).retired[3]), before[3]);
  compress::OperationSettings settings;
  EXPECT_TRUE(cluster.node(0).retired[2]->begin(settings).ok());  // the one in flight was abandoned
}

TEST(Reducers, AreHandedBackAfterAnAbortToo) {
  ClusterOptions options;
  options.network.max_payload = 70'000;
  options.network.bytes_per_second = 1'000'000;
  Cluster cluster(options);
  cluster.add_bucket(1, shape_of(50'000));
  fill(cluster, 1);
  cluster.submit_all(1);
  ASSERT_TRUE(cluster.finish(1));
  cluster.settle();
  const std::vector<float> before = residual_of(*cluster.node(1).reducers[1]);
  cluster.submit_all(1);
  pass(cluster, 300'000);
  cluster.node(1).engine->abort_job(1, Status(Code::kAborted, "rank 0 died"));
  ASSERT_TRUE(cluster.node(1).engine->remove_bucket(1, 1).ok());
  cluster.settle();
  cluster.node(1).engine->remove_job(1);
  ASSERT_NE(cluster.node(1).retired[1], nullptr);
  EXPECT_EQ(residual_of(*cluster.node(1).retired[1]), before);
}

TEST(Reducers, AreHandedBackWhereTheBucketIsRefused) {
  Cluster cluster(ClusterOptions{});
  cluster.node(0).engine->remove_job(Cluster::kJob);
  compress::BucketShape shape;
  shape.layers.push_back({"layer", 10});
  shape.nodes = 2;
  shape.max_message_bytes = 70'000;
  engine::BucketSpec spec;
  spec.job = Cluster::kJob;
  spec.bucket = 1;
  spec.reducer = std::move(compress::make_exact_reducer(shape, compress::Dtype::kFloat32)).value();
  const compress::BucketReducer* const reducer = spec.reducer.get();
  std::unique_ptr<compress::BucketReducer> back;
  spec.retired = [&back](std::unique_ptr<compress::BucketReducer> gone) { back = std::move(gone); };
  EXPECT_EQ(cluster.node(0).engine->add_bucket(std::move(spec)).code(), Code::kNotFound);
  EXPECT_EQ(back.get(), reducer);
}

}  // namespace
}  // namespace gradwire::sim

// Virtual time, an engine that only writes down what it is told, and a few nodes around one coordinator.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "config/policy_json.h"
#include "daemon/control/coordinator.h"
#include "daemon/control/members.h"

namespace gradwire::control::testing {

using std::chrono::milliseconds;
using std::chrono::seconds;

class FakeScheduler final : public Scheduler {
 public:
  Nanoseconds now() const override { return now_; }
  uint64_t after(Nanoseconds delay, Work work) override {
    const uint64_t id = ++last_;
    timers_[{now_ + delay, id}] = std::move(work);
    due_[id] = now_ + delay;
    return id;
  }
  void cancel(uint64_t timer) override {
    if (const auto found = due_.find(timer); found != due_.end()) {
      timers_.erase({found->second, timer});
      due_.erase(found);
    }
  }
  void post(Work work) override { posted_.push_back(std::move(work)); }

  // The next thing of all that is to happen without time passing. False: there is none.
  bool step() {
    if (posted_.empty()) {
      return false;
    }
    const Work work = std::move(posted_.front());
    posted_.pop_front();
    work();
    return true;
  }
  // All of them.
  void settle() {
    for (int guard = 0; step(); ++guard) {
      ASSERT_LT(guard, 1'000'000) << "posted work without end";
    }
  }
  void advance(Nanoseconds duration) {
    const Nanoseconds end = now_ + duration;
    settle();
    while (!timers_.empty() && timers_.begin()->first.first <= end) {
      const auto [due, id] = timers_.begin()->first;
      const Work work = std::move(timers_.begin()->second);
      timers_.erase(timers_.begin());
      due_.erase(id);
      now_ = std::max(now_, due);
      work();
      settle();
    }
    now_ = end;
  }
  size_t timers() const { return timers_.size(); }

 private:
  Nanoseconds now_{seconds(1000)};
  uint64_t last_ = 0;
  std::map<std::pair<Nanoseconds, uint64_t>, Work> timers_;
  std::map<uint64_t, Nanoseconds> due_;
  std::deque<Work> posted_;
};

class FakeEngine final : public EnginePort {
 public:
  explicit FakeEngine(Scheduler& scheduler) : scheduler_(scheduler) {}

  void add_job(engine::JobSpec spec, Done done) override {
    log.push_back("add_job");
    jobs[spec.id] = spec;
    reply(std::move(done), add_job_result);
  }
  void add_bucket(engine::BucketSpec spec, Done done) override {
    log.push_back("add_bucket " + spec.name);
    buckets[spec.bucket] = std::make_shared<engine::BucketSpec>(std::move(spec));
    reply(std::move(done), add_bucket_result);
  }
  void remove_bucket(engine::JobId, uint32_t bucket, Done done) override {
    log.push_back("remove_bucket " + std::to_string(bucket));
    const bool busy = busy_buckets.contains(bucket);
    if (!busy && buckets.contains(bucket)) {
      const auto spec = buckets.extract(bucket).mapped();
      retire(*spec);
    }
    reply(std::move(done), busy ? Status(Code::kUnavailable, "busy") : ok_status());
  }
  void leave_rank(engine::JobId, uint32_t rank, Left done) override {
    log.push_back("leave_rank " + std::to_string(rank));
    scheduler_.post([done] { done(std::vector<engine::BucketSequence>{{0, 4}}); });
  }
  void note_rank_left(engine::JobId, uint32_t rank, std::vector<engine::BucketSequence> last) override {
    log.push_back("note_rank_left " + std::to_string(rank) + " " + std::to_string(last.at(0).sequence));
  }
  void abort_job(engine::JobId, Status cause) override {
    log.push_back("abort_job");
    abort_cause = cause;
  }
  void remove_job(engine::JobId job) override {
    log.push_back("remove_job");
    jobs.erase(job);
    for (auto entry = buckets.begin(); entry != buckets.end();) {
      if (entry->second->job == job) {
        retire(*entry->second);
        entry = buckets.erase(entry);
      } else {
        ++entry;
      }
    }
  }
  void inspect(engine::JobId, uint32_t, uint64_t, std::function<void(engine::OperationView)> done) override {
    if (answers_stalls) {
      engine::OperationView answer = view;
      answer.phase = missing.empty() ? answer.phase : layout::BucketPhase::kGathering;
      answer.missing_ranks = missing;
      scheduler_.post([done, answer] { done(answer); });
    }
  }
  void completed(engine::JobId, std::function<void(std::vector<engine::BucketSequence>)> done) override {
    if (answers_completed) {
      scheduler_.post([done, answer = completed_here] { done(answer); });
    } else {
      late_answers.push_back([done, answer = completed_here] { done(answer); });
    }
  }
  void take_results(engine::JobId, std::function<void(Results)> done) override {
    scheduler_.post([done, taken = std::exchange(results, {})] { done(taken); });
  }
  void look(engine::JobId, uint32_t bucket, engine::Engine::Look look, Done done) override {
    const auto found = buckets.find(bucket);
    const Status status = busy_buckets.contains(bucket) ? Status(Code::kUnavailable, "busy")
                          : found == buckets.end()      ? Status(Code::kNotFound, "gone")
                                                        : look(*found->second->reducer);
    ++looks;
    most_looking = std::max(most_looking, ++looking);
    reply(
        [this, done = std::move(done)](const Status& answer) {
          --looking;
          done(answer);
        },
        status);
  }
  void traffic(engine::JobId, std::function<void(const Traffic&)> done) override {
    scheduler_.post([done] { done(Traffic{1, 2, 3}); });
  }

  void probe(engine::JobId, std::function<void(const engine::ProbeTimes&)> done) override {
    ++probes;
    if (answers_probes) {
      scheduler_.post([done, times = probe_times] { done(times); });
    } else {
      late_answers.push_back([done, times = probe_times] { done(times); });
    }
  }
  void hold_bucket(engine::JobId, uint32_t bucket,
                   std::function<void(const Result<uint64_t>&)> done) override {
    log.push_back("hold " + std::to_string(bucket));
    const Result<uint64_t> answer =
        buckets.contains(bucket) ? Result<uint64_t>(next_sequence) : Status(Code::kNotFound, "gone");
    if (answers_holds) {
      scheduler_.post([done, answer] { done(answer); });
    } else {
      late_answers.push_back([done, answer] { done(answer); });
    }
  }
  // The bucket is at rest at once, unless `idles` is false.
  void let_begin(engine::JobId, uint32_t bucket, uint64_t from, engine::Engine::Idle idle,
                 Done done) override {
    log.push_back("let_begin " + std::to_string(bucket) + " from " + std::to_string(from));
    reply(std::move(done), ok_status());
    const auto rest = [this, bucket, idle] {
      if (const auto found = buckets.find(bucket); found != buckets.end()) {
        idle(*found->second->reducer);
      }
    };
    if (idles) {
      scheduler_.post(rest);
    } else {
      late_answers.emplace_back(rest);
    }
  }
  void change_bucket(engine::JobId, uint32_t bucket, std::shared_ptr<engine::BucketChange> change,
                     Done done) override {
    log.push_back("change_bucket " + std::to_string(bucket));
    const auto found = buckets.find(bucket);
    if (found != buckets.end() && change_result.ok()) {
      std::swap(found->second->reducer, change->reducer);
      std::swap(found->second->algorithm, change->algorithm);
      std::swap(found->second->retired, change->retired);
      std::swap(found->second->plan, change->plan);
    }
    reply(std::move(done), found == buckets.end() ? Status(Code::kNotFound, "gone") : change_result);
  }
  void go_on(engine::JobId, uint32_t bucket) override { log.push_back("go_on " + std::to_string(bucket)); }

  bool logged(const std::string& entry) const {
    return std::find(log.begin(), log.end(), entry) != log.end();
  }

  std::vector<std::string> log;
  std::map<engine::JobId, engine::JobSpec> jobs;
  std::map<uint32_t, std::shared_ptr<engine::BucketSpec>> buckets;
  std::set<uint32_t> busy_buckets;
  std::vector<uint32_t> missing;
  std::vector<engine::BucketSequence> completed_here;
  Results results;  // that nobody has taken
  int looks = 0;
  int looking = 0, most_looking = 0;  // looks that are not answered yet
  int probes = 0;
  engine::ProbeTimes probe_times{100'000, 20'000, 20'000'000, 3'000'000};
  uint64_t next_sequence = 1;
  bool answers_probes = true, answers_holds = true, idles = true;
  Status change_result;
  bool answers_stalls = true;
  bool answers_completed = true;
  std::vector<Work> late_answers;
  engine::OperationView view;  // of every operation that all have submitted
  Status add_job_result, add_bucket_result, abort_cause;

 private:
  static void retire(engine::BucketSpec& spec) {
    spec.memory.clear();
    if (spec.retired) {
      spec.retired(std::move(spec.reducer));
    }
  }
  void reply(Done done, Status status) {
    scheduler_.post([done, status] { done(status); });
  }
  Scheduler& scheduler_;
};

class InlineWorkshop final : public Workshop {
 public:
  explicit InlineWorkshop(Scheduler& scheduler) : scheduler_(scheduler) {}
  void run(Work work, Work then) override {
    if (closed) {
      waiting_.emplace_back(std::move(work), std::move(then));
      return;
    }
    work();
    work = nullptr;
    scheduler_.post(std::move(then));
  }
  void open() {
    closed = false;
    for (auto& [work, then] : std::exchange(waiting_, {})) {
      run(std::move(work), std::move(then));
    }
  }

  bool closed = false;  // what is asked for waits until it opens

 private:
  Scheduler& scheduler_;
  std::vector<std::pair<Work, Work>> waiting_;
};

// A link whose cable can be pulled out: nothing goes through, nobody is told.
class MutableLink final : public Link {
 public:
  MutableLink(LinkPtr inner, std::shared_ptr<bool> cut) : inner_(std::move(inner)), cut_(std::move(cut)) {}
  void start(OnDocument document, OnClosed closed) override {
    inner_->start(
        [document, cut = cut_](const Json& each) {
          if (!*cut) {
            document(each);
          }
        },
        [closed, cut = cut_](const Status& why) {
          if (!*cut) {
            closed(why);
          }
        });
  }
  void send(const Json& document) override {
    if (!*cut_) {
      // As over a real connection: through text and back.
      inner_->send(*parse_document(write_document(document)));
    }
  }
  void close() override { inner_->close(); }
  std::string peer() const override { return "a test"; }

 private:
  LinkPtr inner_;
  std::shared_ptr<bool> cut_;
};

struct TestRank {
  uint32_t rank = 0;
  std::shared_ptr<Member> member;
  std::optional<Result<Joined>> joined;
  std::optional<Status> aborted;
  std::optional<Result<BucketCreated>> bucket;
  std::optional<Status> answer;

  bool running() const { return joined && joined->ok() && !aborted; }
  // What the rank was told last that is not a success.
  Status failure() const {
    if (aborted) {
      return *aborted;
    }
    if (bucket && !bucket->ok()) {
      return bucket->status();
    }
    return joined && !joined->ok() ? joined->status() : ok_status();
  }
};

// A reply that is written down, and keeps nothing alive: the rank holds the member that holds the reply.
template <typename Function>
auto into(const std::shared_ptr<TestRank>& rank, Function function) {
  return [weak = std::weak_ptr<TestRank>(rank), function](const auto& result) {
    if (const auto self = weak.lock()) {
      function(*self, result);
    }
  };
}

struct TestNode {
  std::string name;
  std::unique_ptr<FakeEngine> engine;
  std::unique_ptr<InlineWorkshop> workshop;
  std::unique_ptr<NodeContext> context;
  std::unique_ptr<Members> members;
  std::shared_ptr<bool> cut = std::make_shared<bool>(false);
};

struct JoinOptions {
  std::string job = "job";
  uint64_t timeout_ms = 60'000;
  uint32_t uid = 7;
  std::string run_id = "0";
  bool fresh = false;
  uint64_t session = 0;
  uint64_t age_ms = 0;
  std::function<std::string()> gone = nullptr;
  bool settle = true;  // else what follows from the join has yet to happen
};

// What codecs cost on a machine of the tests: nanoseconds and bytes an element. Sparse ones are those at 1 %.
inline Result<planner::CodecCost> usual_cost(const compress::CodecSettings& settings) {
  struct Row {
    std::string_view codec;
    double hop, arrival, decode, bytes, most_bytes;
  };
  constexpr Row kRows[] = {{"none", 0.3, 0.1, 0.3, 4, 4},
                           {"l8", 0.7, 0.1, 0.2, 1, 1},
                           {"laco", 0.6, 0.1, 0.1, 0.02, 1},
                           {"topk", 10, 0.1, 0.1, 0.02, 1},
                           {"onebit", 2, 1, 1, 0.13, 0.13}};
  for (const Row& row : kRows) {
    if (row.codec == settings.codec) {
      planner::CodecCost cost;
      cost.first = {100, row.hop};
      cost.relay = {100, row.hop + row.arrival};
      cost.decode = {100, row.decode};
      cost.bytes_per_element = row.bytes;
      cost.most_bytes_per_element = row.most_bytes;
      return cost;
    }
  }
  return Status(Code::kInvalidArgument, "the tests know no cost of codec " + settings.codec);
}

// As the policy says, along the ring.
inline config::PlanOptions pinned() {
  config::PlanOptions plan;
  plan.algorithm = "ring";
  plan.bypass = "never";
  plan.segment = 16 << 20;
  return plan;
}

// `names[0]` coordinates.
class TestCluster {
 public:
  explicit TestCluster(const std::vector<std::string>& names, Nanoseconds residual_ttl = seconds(600))
      : ttl(residual_ttl) {
    for (const std::string& name : names) {
      add_node(name);
    }
    coordinator = std::make_unique<Coordinator>(
        scheduler,
        CoordinatorOptions{nodes[0]->context->self, seconds(2), seconds(10), config::policy_to_json(policy),
                           [](size_t bytes) { return std::string(bytes, 'k'); }, pinned()});
  }

  ~TestCluster() {
    coordinator.reset();
    nodes.clear();
    scheduler.settle();
  }

  TestNode& add_node(const std::string& name) {
    auto node = std::make_unique<TestNode>();
    node->name = name;
    node->engine = std::make_unique<FakeEngine>(scheduler);
    node->workshop = std::make_unique<InlineWorkshop>(scheduler);
    NodeInfo self;
    self.name = name;
    self.instance = std::string(15, 'i') + static_cast<char>('0' + nodes.size());
    self.version = "0.1.0";
    self.transport = "ucx 1.13.1";
    self.transport_address = "address of " + name;
    self.data_hosts = {"10.0.0." + std::to_string(nodes.size() + 1), "fe80::1"};
    self.max_payload = 130048;
    self.peer_timeout_ms = 2000;
    self.operation_timeout_ms = 10000;
    node->context = std::make_unique<NodeContext>(NodeContext{
        scheduler, *node->engine, *node->workshop, std::make_shared<QuotaLedger>(quotas), self, seconds(2),
        seconds(10), [this, cut = node->cut](const std::string&, uint32_t, Reply<LinkPtr> done) {
          if (!coordinator || !refusal.ok()) {
            done(refusal.ok() ? Status(Code::kUnavailable, "connection refused") : refusal);
            return;
          }
          auto [ours, theirs] = make_local_links(scheduler);
          coordinator->accept(std::make_shared<MutableLink>(theirs, cut));
          done(LinkPtr(std::make_shared<MutableLink>(ours, cut)));
        }});
    node->context->residuals =
        std::make_shared<ResidualStore>(scheduler, *node->workshop, node->context->quotas, ttl);
    node->context->pasts = std::make_shared<PastStore>(scheduler, ttl);
    node->context->costs = std::make_shared<CostBook>(*node->workshop, usual_cost);
    node->members = std::make_unique<Members>(*node->context, Members::Hooks{[](const JobFacts&) {}});
    nodes.push_back(std::move(node));
    return *nodes.back();
  }

  std::shared_ptr<TestRank> join(size_t node, uint32_t rank, uint32_t world, const std::string& job = "job",
                                 uint64_t timeout_ms = 60'000) {
    JoinOptions options;
    options.job = job;
    options.timeout_ms = timeout_ms;
    return join(node, rank, world, options);
  }
  std::shared_ptr<TestRank> join(size_t node, uint32_t rank, uint32_t world, const JoinOptions& options) {
    auto result = std::make_shared<TestRank>();
    result->rank = rank;
    LocalJoin join;
    join.rank = rank;
    join.world = world;
    join.pid = static_cast<int32_t>(1000 + rank);
    join.timeout_ms = options.timeout_ms;
    join.fresh = options.fresh;
    join.session = options.session;
    join.age_ms = options.age_ms;
    join.gone = options.gone;
    join.placed =
        into(result, [](TestRank& self, const std::shared_ptr<Member>& member) { self.member = member; });
    join.aborted = into(result, [](TestRank& self, const Status& cause) { self.aborted = cause; });
    nodes[node]->members->join(
        {options.uid, options.job, options.run_id}, "a:7470", std::move(join),
        into(result, [](TestRank& self, const Result<Joined>& joined) { self.joined = joined; }));
    if (options.settle) {
      scheduler.settle();
    }
    return result;
  }

  void create(const std::shared_ptr<TestRank>& rank, const Manifest& manifest) {
    rank->bucket.reset();
    rank->member->create_bucket(
        rank->rank, manifest,
        into(rank, [](TestRank& self, const Result<BucketCreated>& created) { self.bucket = created; }));
    scheduler.settle();
  }
  void destroy(const std::shared_ptr<TestRank>& rank, uint32_t bucket) {
    rank->answer.reset();
    rank->member->destroy_bucket(
        rank->rank, bucket, into(rank, [](TestRank& self, const Status& status) { self.answer = status; }));
    scheduler.settle();
  }
  void leave(const std::shared_ptr<TestRank>& rank) {
    rank->answer.reset();
    rank->member->leave(rank->rank,
                        into(rank, [](TestRank& self, const Status& status) { self.answer = status; }));
    scheduler.settle();
  }
  // Nodes a and b with ranks 0,1 and 2,3.
  std::vector<std::shared_ptr<TestRank>> running_job(const JoinOptions& options = {}) {
    std::vector<std::shared_ptr<TestRank>> ranks;
    for (uint32_t rank = 0; rank < 4; ++rank) {
      ranks.push_back(join(rank / 2, rank, 4, options));
    }
    for (const auto& rank : ranks) {
      EXPECT_TRUE(rank->running()) << rank->failure().message();
    }
    return ranks;
  }

  // On all ranks; the last one's success.
  void create_on_all(const std::vector<std::shared_ptr<TestRank>>& ranks, const Manifest& manifest) {
    for (const auto& rank : ranks) {
      create(rank, manifest);
    }
    for (const auto& rank : ranks) {
      ASSERT_TRUE(rank->bucket && rank->bucket->ok()) << rank->failure().message();
    }
  }

  const Nanoseconds ttl;
  FakeScheduler scheduler;
  config::QuotaOptions quotas;
  config::CompressionPolicy policy;
  std::vector<std::unique_ptr<TestNode>> nodes;
  Status refusal;  // of every connection, at once
  std::unique_ptr<Coordinator> coordinator;
};

}  // namespace gradwire::control::testing

// Trainers that keep the memory of buckets that they have destroyed, against a real daemon.
#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>

#include "tests/control/processes.h"
#include "tests/control/raw_trainer.h"

namespace gradwire::control::testing {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

// One bucket takes more than half of it, together with what a session leaves behind less than all.
const std::vector<std::string> kTight = {"quotas.bytes_per_user=2MiB", "compression.codec=none"};
constexpr uint64_t kElements = 180'000;

std::string type_of(const std::optional<Json>& answer) {
  return answer ? answer->value("type", "") : "no answer";
}

TEST(KeptMemory, IsChargedUntilItIsClosedThoughBucketsAndJobsEnd) {
  TemporaryDirectory root;
  DaemonProcess daemon(root.path(), "a", kTight);
  ASSERT_TRUE(daemon.ready()) << daemon.log();
  RawTrainer first(daemon.socket);
  ASSERT_EQ(type_of(first.ask(join_request("first"))), "joined");
  const Json create{{"type", "bucket_create"},
                    {"id", 2},
                    {"name", "b0"},
                    {"dtype", 0},
                    {"flags", 0},
                    {"layers", Json::array({Json::array({"w", kElements})})}};
  const auto created = first.ask(create);
  ASSERT_EQ(type_of(created), "bucket_created") << created.value_or(Json());
  const Json destroy{{"type", "bucket_destroy"}, {"id", 3}, {"bucket", (*created)["bucket"]}};
  ASSERT_EQ(type_of(first.ask(destroy)), "ok");
  const auto refused = first.ask(create);
  ASSERT_TRUE(is_error(refused));
  EXPECT_THAT((*refused)["message"].get<std::string>(),
              HasSubstr("user " + std::to_string(getuid()) +
                        " holds 1441792 bytes on this node (buckets 1441792), 1441792 of them memory of "
                        "ended buckets and sessions that its processes still keep mapped or open,"));
  ASSERT_EQ(type_of(first.ask({{"type", "leave"}, {"id", 4}})), "ok");

  RawTrainer second(daemon.socket);
  const auto joined = second.ask(join_request("second"));
  ASSERT_EQ(type_of(joined), "joined") << joined.value_or(Json());
  EXPECT_TRUE(is_error(second.ask(create))) << "the job that had the memory is over";
  first.descriptors.clear();
  EXPECT_EQ(type_of(second.ask(create)), "bucket_created") << daemon.log();
}

TEST(KeptMemory, ThatIsLetGoOfNeverStandsInTheWayOfTheNextBucket) {
  TemporaryDirectory root;
  DaemonProcess daemon(root.path(), "a", kTight);
  ASSERT_TRUE(daemon.ready()) << daemon.log();
  Trainer honest([&]() -> Outcome {
    gw_job* job = nullptr;
    gw_status status = join_job("honest", 0, 1, daemon.socket, "", &job);
    const gw_layer layer = {"w", kElements};
    int done = 0;
    for (; status == GW_OK && done < 200; ++done) {
      gw_bucket* bucket = nullptr;
      status = gw_bucket_create(job, "b0", GW_FLOAT32, &layer, 1, 0, &bucket);
      if (status == GW_OK) {
        std::fill_n(static_cast<float*>(gw_bucket_gradient(bucket)), kElements, 1.0F);
        status = gw_allreduce(bucket, GW_SUM);
        status = status == GW_OK ? gw_wait(bucket, 20'000, nullptr) : status;
        status = status == GW_OK ? gw_bucket_destroy(bucket) : status;
      }
    }
    return {status, status == GW_OK ? "" : gw_last_error(), static_cast<double>(done)};
  });
  const auto outcome = honest.outcome(seconds(30));
  ASSERT_TRUE(outcome) << daemon.log();
  EXPECT_EQ(outcome->status, GW_OK) << outcome->message << " at bucket " << outcome->value;
}

}  // namespace
}  // namespace gradwire::control::testing

#include "client/src/progress.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "client/src/connection.h"
#include "client/src/error.h"
#include "client/src/job.h"
#include "client/src/text.h"

namespace gradwire::client {
namespace {

using nlohmann::json;

// ["b0", 16, 17, 2]; more members may follow in later versions.
bool read_bucket(const json& entry, int32_t world, Past* past) {
  if (!entry.is_array() || entry.size() < 4 || !entry[0].is_string() || !entry[1].is_number_unsigned() ||
      !entry[2].is_number_unsigned() || !entry[3].is_number_integer()) {
    return false;
  }
  const auto& name = entry[0].get_ref<const std::string&>();
  Progress progress;
  progress.lowest = entry[1].get<uint64_t>();
  progress.highest = entry[2].get<uint64_t>();
  // -1 is the one negative number that has a meaning.
  const bool is_rank =
      entry[3].is_number_unsigned() && entry[3].get<uint64_t>() < static_cast<uint64_t>(world);
  if (!is_rank && (entry[3].is_number_unsigned() || entry[3].get<int64_t>() != -1)) {
    return false;
  }
  progress.highest_rank = entry[3].get<int32_t>();
  return progress.lowest <= progress.highest && past->buckets.emplace(name, progress).second;
}

gw_status previous_epoch(const gw_job* job, const char* bucket, gw_progress* out) {
  if (bucket == nullptr) {
    return fail(GW_ERR_INVALID, "the bucket's name is NULL");
  }
  if (out == nullptr || out->struct_size < sizeof(size_t)) {
    return fail(GW_ERR_INVALID, "gw_progress.struct_size must be set to sizeof(gw_progress)");
  }
  const Past& past = job->past;
  if (past.epoch == 0) {
    return fail(GW_ERR_NOT_FOUND, say("job ", job->identity.job, " is in epoch ", job->epoch,
                                      " and gradwired knows of none before it"));
  }
  const auto found = past.buckets.find(std::string_view(bucket));
  if (found == past.buckets.end()) {
    return fail(GW_ERR_NOT_FOUND, say("epoch ", past.epoch, " of job ", job->identity.job,
                                      " completed nothing on a bucket named ", excerpt(bucket, 200)));
  }
  gw_progress known{};
  known.struct_size = out->struct_size;
  known.epoch = past.epoch;
  known.lowest = found->second.lowest;
  known.highest = found->second.highest;
  known.highest_rank = found->second.highest_rank;
  known.unknown_nodes = past.unknown_nodes;
  std::memcpy(out, &known, std::min(out->struct_size, sizeof(known)));
  return GW_OK;
}

}  // namespace

bool read_past(const json& document, uint64_t epoch, int32_t world, Past* past) {
  const auto member = document.find("past");
  if (member == document.end()) {
    return true;
  }
  uint64_t unknown_nodes = 0;
  if (!member->is_object() || !read_member(*member, "epoch", UINT64_MAX, &past->epoch) || past->epoch == 0 ||
      past->epoch >= epoch ||
      !read_member(*member, "unknown_nodes", static_cast<uint64_t>(world), &unknown_nodes)) {
    return false;
  }
  past->unknown_nodes = static_cast<uint32_t>(unknown_nodes);
  const auto buckets = member->find("buckets");
  return buckets != member->end() && buckets->is_array() &&
         std::all_of(buckets->begin(), buckets->end(),
                     [&](const json& entry) { return read_bucket(entry, world, past); });
}

}  // namespace gradwire::client

using namespace gradwire::client;  // NOLINT(google-build-using-namespace): this file is the library's edge

uint64_t gw_epoch(const gw_job* job) {
  return check_handle(job) == GW_OK ? job->epoch : 0;
}

gw_status gw_previous_epoch(const gw_job* job, const char* bucket, gw_progress* progress) {
  return at_the_edge([&]() -> gw_status {
    const gw_status status = check_handle(job);
    return status != GW_OK ? status : previous_epoch(job, bucket, progress);
  });
}

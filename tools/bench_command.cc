#include <gradwire/gradwire.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "config/options.h"
#include "tools/bench/bench.h"
#include "tools/commands.h"
#include "tools/format.h"

namespace gradwire::tools {
namespace {

constexpr uint32_t kMostIterations = 1u << 20;

int complain(const std::string& text) {
  std::fprintf(stderr, "gradwire bench: %s\n", text.c_str());
  return 1;
}

int run_bench(const BenchOptions& options) {
  gw_join_options join{};
  join.struct_size = sizeof(join);
  join.rank = -1;
  join.world = -1;
  gw_job* job = nullptr;
  if (const gw_status status = gw_join(&join, &job); status != GW_OK) {
    return complain(std::string("cannot join: ") + gw_status_name(status) + ": " + gw_last_error());
  }
  const std::unique_ptr<gw_job, void (*)(gw_job*)> leave(job, [](gw_job* joined) { gw_leave(joined); });
  BenchPlace place;
  place.rank = static_cast<uint32_t>(gw_rank(job));
  place.world = static_cast<uint32_t>(gw_world(job));
  place.local_ranks = static_cast<uint32_t>(gw_local_ranks(job));
  std::vector<BenchResult> results;
  uint64_t failures = 0;
  for (const uint64_t bytes : options.sizes) {
    Result<BenchResult> result = bench_size(job, place, bytes, options);
    if (!result.ok()) {
      return complain("rank " + std::to_string(place.rank) + ": " + result.status().message());
    }
    failures += result->failures;
    results.push_back(*std::move(result));
  }
  if (place.rank == 0) {
    const std::string text =
        options.json ? bench_json(results, place, options).dump(2) + "\n" : bench_table(results, place);
    std::fwrite(text.data(), 1, text.size(), stdout);
  }
  return failures == 0 ? 0 : 1;
}

// Those of the policy, and what a bucket with several is called.
std::vector<std::string> codecs_of_buckets() {
  const auto choices = config::find_option("compression.codec")->choices;
  std::vector<std::string> names(choices.begin(), choices.end());
  names.emplace_back("mixed");
  return names;
}

void parse_sizes(const std::vector<std::string>& texts, std::vector<uint64_t>* sizes) {
  sizes->clear();
  for (const std::string& text : texts) {
    const Result<uint64_t> bytes = parse_bytes(text);
    if (!bytes.ok()) {
      throw CLI::ValidationError("--sizes", bytes.status().message());
    }
    if (*bytes % sizeof(float) != 0) {
      throw CLI::ValidationError("--sizes", text + " is not a multiple of 4 bytes (float32)");
    }
    sizes->push_back(*bytes);
  }
}

}  // namespace

void add_bench_command(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<BenchOptions>();
  options->sizes = {4 << 10, 1 << 20, 25 << 20};
  CLI::App* command = app.add_subcommand("bench", "Measure allreduce, as a rank of a job");
  command->footer(
      "Every rank runs it, inside `gradwire run` or any launcher: gradwire run -n 2 -- gradwire "
      "bench\n"
      "A sample is the time from a barrier to the completion on the slowest rank. Bus bandwidth is "
      "algorithm\n"
      "bandwidth times 2(P-1)/P for P nodes. Rank 0 prints the results.\n"
      "Exit codes: 0; 1 an operation failed or a result is wrong; 2 wrong usage.");
  command
      ->add_option_function<std::vector<std::string>>(
          "--sizes",
          [options](const std::vector<std::string>& texts) { parse_sizes(texts, &options->sizes); },
          "Sizes of the buckets of float32, in bytes or with B, KiB, MiB, GiB, TiB [4KiB,1MiB,25MiB]")
      ->delimiter(',');
  command
      ->add_option("--codec", options->codec,
                   "Fail unless the daemons' policy gives this codec (it is their choice; see `gradwire run "
                   "--codec`)")
      ->check(CLI::IsMember(codecs_of_buckets()));
  command->add_option("--iterations", options->iterations, "Measured operations of each size")
      ->check(CLI::Range(1u, kMostIterations))
      ->capture_default_str();
  command->add_option("--warmup", options->warmup, "Operations before them")
      ->check(CLI::Range(0u, kMostIterations))
      ->capture_default_str();
  command->add_option("--layers", options->layers, "Layers of equal size in a bucket")
      ->check(CLI::Range(1u, 4096u))
      ->capture_default_str();
  command->add_flag("--exact", options->exact, "Not as gradients: never compressed");
  command->add_flag_callback(
      "--verify", [options] { options->verify = true; },
      "Check every result against a reference (int8, int4, onebit, sign: not that), and that all ranks have "
      "the "
      "same bits: it does so anyway");
  command->add_flag_callback(
      "--no-verify", [options] { options->verify = false; }, "Measure only");
  command->add_flag("--json", options->json, "Print JSON; names carry their units");
  command->callback([options, exit_code] { *exit_code = run_bench(*options); });
}

}  // namespace gradwire::tools

#include "config/options.h"

#include <algorithm>
#include <array>
#include <iterator>

namespace gradwire::config {
namespace {

constexpr double kMillisecond = 1e3;
constexpr double kSecond = 1e6;
constexpr double kMinute = 60 * kSecond;
constexpr double kHour = 60 * kMinute;
constexpr double kDay = 24 * kHour;
constexpr double kKiB = 1024.0;
constexpr double kMiB = 1024 * kKiB;
constexpr double kTiB = 1024 * 1024 * kMiB;

constexpr std::string_view kTransports[] = {"ucx"};
constexpr std::string_view kAlgorithms[] = {"auto", "ring", "direct"};
constexpr std::string_view kBypasses[] = {"auto", "never", "always"};
constexpr std::string_view kLevels[] = {"trace", "debug", "info", "warn", "error"};
constexpr std::string_view kCodecs[] = {"none",   "fp16", "bf16", "l8",   "int8", "int4",
                                        "onebit", "sign", "lads", "laco", "topk", "dropping"};
// What may stand in for another codec: not none, which is plan.bypass's; sign counts votes, which no other
// sum is.
constexpr auto kOtherCodecs = [] {
  std::array<std::string_view, std::size(kCodecs) - 2> others;
  std::ranges::copy_if(kCodecs, others.begin(), [](auto name) { return name != "none" && name != "sign"; });
  return others;
}();
constexpr std::string_view kNorms[] = {"previous", "current"};
constexpr std::string_view kRoundings[] = {"nearest", "stochastic"};
constexpr std::string_view kSteps[] = {"8", "16"};
constexpr std::string_view kResiduals[] = {"fp32", "bf16"};
constexpr std::string_view kSwitch[] = {"on", "off"};
constexpr std::string_view kNormsOf[] = {"sum", "gradient"};
constexpr std::string_view kWarmStarts[] = {"stages", "exponential"};
constexpr std::string_view kScopes[] = {"layer", "bucket"};

#define FIELD(path) [](Config& c) -> Field { return &c.path; }

constexpr Option kOptions[] = {
    {"node.name",
     Type::kText,
     1,
     255,
     {},
     "worker-3",
     "the host's name",
     "How this node is called in status, logs and errors.",
     FIELD(node.name)},
    {"node.runtime_dir",
     Type::kPath,
     1,
     90,
     {},
     "/run/gradwire",
     "$RUNTIME_DIRECTORY where set (systemd sets it), else /run/gradwire",
     "Directory of the socket, the counters page and the lock file. The daemon makes it where only its last "
     "part is missing; one that exists must be writable for the daemon's user.",
     FIELD(node.runtime_dir)},
    {"node.socket",
     Type::kPath,
     1,
     107,
     {},
     "/run/gradwire/gradwired.sock",
     "gradwired.sock in node.runtime_dir",
     "Unix socket at which training processes attach.",
     FIELD(node.socket)},
    {"node.socket_group",
     Type::kText,
     1,
     64,
     {},
     "gradwire",
     "",
     "Group that owns the socket. Where it does not exist, the daemon's own group is used, with a warning if "
     "node.socket_mode gives the group any rights.",
     FIELD(node.socket_group)},
    {"node.socket_mode",
     Type::kMode,
     0600,
     0777,
     {},
     "0660",
     "",
     "Permissions of the socket, octal. Whoever can write to the socket can attach.",
     FIELD(node.socket_mode)},

    {"peers.listen",
     Type::kAddress,
     0,
     0,
     {},
     "10.0.0.3",
     "",
     "Address at which the daemons of other nodes connect; '::' is every address, IPv6 and IPv4.",
     FIELD(peers.listen)},
    {"peers.port",
     Type::kCount,
     0,
     65535,
     {},
     "7470",
     "",
     "TCP port for other nodes' daemons, the same on all nodes of a job; 0 lets the system choose.",
     FIELD(peers.port)},
    {"peers.advertise",
     Type::kText,
     0,
     255,
     {},
     "10.0.0.3",
     "",
     "Address or host name that other nodes are told to connect to. Empty: the daemon chooses.",
     FIELD(peers.advertise)},
    {"peers.key_file",
     Type::kPath,
     0,
     4095,
     {},
     "/etc/gradwire/key",
     "",
     "File with the pre-shared key of all nodes: one line, hex digits or text, 16 to 256 bytes, not readable "
     "by others. "
     "Empty: jobs that span nodes are refused.",
     FIELD(peers.key_file)},
    {"peers.max_document",
     Type::kSize,
     64 * kKiB,
     1024 * kMiB,
     {},
     "16MiB",
     "",
     "Largest control document that is accepted from another node.",
     FIELD(peers.max_document)},

    {"clocks.peer_timeout",
     Type::kDuration,
     100 * kMillisecond,
     10 * kMinute,
     {},
     "2s",
     "",
     "A process or connection that gave no sign of life for so long is gone; another node, for a quarter "
     "longer.",
     FIELD(clocks.peer_timeout)},
    {"clocks.operation_timeout",
     Type::kDuration,
     100 * kMillisecond,
     kDay,
     {},
     "300s",
     "",
     "An operation that lacks a rank which is alive for so long fails. At least clocks.peer_timeout.",
     FIELD(clocks.operation_timeout)},
    {"clocks.stall_warning",
     Type::kDuration,
     10 * kMillisecond,
     kDay,
     {},
     "5s",
     "",
     "An operation or a job's start that waits for so long is logged once, with the ranks that are missing.",
     FIELD(clocks.stall_warning)},
    {"clocks.residual_ttl",
     Type::kDuration,
     0,
     7 * kDay,
     {},
     "600s",
     "",
     "How long the residuals of a job that ended are kept for the case that it comes back.",
     FIELD(clocks.residual_ttl)},
    {"clocks.drain_timeout",
     Type::kDuration,
     0,
     kMinute,
     {},
     "5s",
     "",
     "How long a daemon that is told to stop lets operations in flight go on before it ends its jobs; 0s: "
     "not "
     "at all. The systemd unit's TimeoutStopSec must be at least 10 s longer.",
     FIELD(clocks.drain_timeout)},

    {"transport.kind", Type::kChoice, 0, 0, kTransports, "ucx", "", "What carries gradients between nodes.",
     FIELD(transport.kind)},
    {"transport.tls",
     Type::kText,
     1,
     255,
     {},
     "rc,self",
     "",
     "Transports that UCX may use (UCX_TLS), for example 'tcp,self' or 'rc,self'.",
     FIELD(transport.tls)},
    {"transport.devices",
     Type::kText,
     0,
     1023,
     {},
     "mlx5_0:1",
     "",
     "Network devices that UCX may use (UCX_NET_DEVICES), separated by commas. Empty: all.",
     FIELD(transport.devices)},
    {"transport.ucx",
     Type::kUcxMap,
     0,
     128,
     {},
     "{TCP_CM_REUSEADDR: y}",
     "",
     "Further settings of UCX by name, without the prefix UCX_.",
     FIELD(transport.ucx)},
    {"transport.segment",
     Type::kSize,
     72 * kKiB,
     kMiB,
     {},
     "128KiB",
     "",
     "Largest message with gradients; a bucket travels in segments of this size.",
     FIELD(transport.segment)},

    {"engine.spin",
     Type::kSpin,
     1,
     10 * kMillisecond,
     {},
     "50us",
     "",
     "How long the engine polls before it sleeps. auto is 20us, and off where processes exceed the cores.",
     FIELD(engine.spin)},
    {"engine.workers",
     Type::kAutoCount,
     0,
     256,
     {},
     "4",
     "",
     "Threads for large kernels. auto: by the number of cores; 0: the engine's own thread does everything.",
     FIELD(engine.workers)},

    {"quotas.bytes_per_user",
     Type::kSize,
     kMiB,
     1024 * kTiB,
     {},
     "64GiB",
     "",
     "Memory that the daemon holds for one user: buckets, results and residuals.",
     FIELD(quotas.bytes_per_user)},
    {"quotas.jobs_per_user",
     Type::kCount,
     1,
     65536,
     {},
     "64",
     "",
     "Jobs that one user can have on this node at a time.",
     FIELD(quotas.jobs_per_user)},
    {"quotas.sessions_per_user",
     Type::kCount,
     1,
     4096,
     {},
     "1024",
     "",
     "Ranks of all jobs that one user can have on this node at a time.",
     FIELD(quotas.sessions_per_user)},
    {"quotas.buckets_per_job",
     Type::kCount,
     1,
     1048576,
     {},
     "16384",
     "",
     "Buckets that one job can have.",
     FIELD(quotas.buckets_per_job)},

    {"log.level", Type::kChoice, 0, 0, kLevels, "info", "", "The least severe messages that are logged.",
     FIELD(log.level)},

    {"plan.algorithm", Type::kChoice, 0, 0, kAlgorithms, "ring", "",
     "How the shares of a gradient bucket travel. ring: each node adds its own and passes the sum on; "
     "direct: "
     "every node sends its share of a chunk to the one that owns it, and gets the sum from there: fewer "
     "steps "
     "and less rounding on many nodes, but each node needs a connection to every other one; auto: what is "
     "faster by measurement, for each bucket. Buckets that direct cannot reduce (codec sign, other types "
     "than "
     "float32) go around the ring. The coordinator's daemon decides for the whole job, here as below.",
     FIELD(plan.algorithm)},
    {"plan.bypass", Type::kChoice, 0, 0, kBypasses, "never", "",
     "Whether gradients go exactly, whatever compression.codec says. auto: where that is faster by "
     "measurement, for each bucket; never; always.",
     FIELD(plan.bypass)},
    {"plan.codecs", Type::kCodecs, 0, 127, kOtherCodecs, "l8,fp16", "",
     "Codecs that a bucket may get instead of the policy's where that is faster by measurement, separated by "
     "commas. They replace whatever the policy names, but for none. Empty: the policy's only.",
     FIELD(plan.codecs)},
    {"plan.segment",
     Type::kSize,
     72 * kKiB,
     kMiB,
     {},
     "128KiB",
     "",
     "Largest message of a bucket; more than transport.segment counts as that. 0B: by measurement.",
     FIELD(plan.segment),
     true},
    {"plan.remeasure",
     Type::kDuration,
     100 * kMillisecond,
     kDay,
     {},
     "60s",
     "",
     "How often a job's network is measured again, and plans that no longer fit are changed. 0s: at the "
     "job's start only. Nothing is measured where all of the above leave no choice, nor on one node.",
     FIELD(plan.remeasure),
     true},

    {"compression.codec", Type::kChoice, 0, 0, kCodecs, "laco", "",
     "none: exact; fp16, bf16: 16 bits an element; l8: 8 bits, logarithmic; int8, int4: 8 or 4 bits, linear; "
     "onebit: signs with error feedback; sign: majority vote; lads: sparse, elements over their layer's "
     "threshold; laco: lads with values in 8 bits; topk: sparse, the largest of a block; dropping: sparse, "
     "over a sampled quantile.",
     FIELD(compression.defaults.codec)},
    {"compression.density",
     Type::kNumber,
     1e-6,
     1,
     {},
     "0.01",
     "",
     "Share of elements that sparse codecs send.",
     FIELD(compression.defaults.density)},
    {"compression.edge_density_factor",
     Type::kNumber,
     1,
     100,
     {},
     "4",
     "",
     "Factor on the density of the first and the last large layer.",
     FIELD(compression.defaults.edge_density_factor)},
    {"compression.dense_below",
     Type::kCount,
     0,
     1099511627776,
     {},
     "2048",
     "",
     "Layers with fewer elements are sent whole by sparse codecs: exactly by lads and dropping, as l8 by "
     "laco and topk.",
     FIELD(compression.defaults.dense_below)},
    {"compression.density_cap",
     Type::kNumber,
     1,
     1000,
     {},
     "4",
     "",
     "No block sends more than this times the density.",
     FIELD(compression.defaults.density_cap)},
    {"compression.warm_start_steps",
     Type::kCount,
     0,
     1000000000,
     {},
     "100",
     "",
     "Steps in each stage of the warm start, which lowers the density from dense to the target, or in all of "
     "an exponential one; 0: none.",
     FIELD(compression.defaults.warm_start_steps)},
    {"compression.norm", Type::kChoice, 0, 0, kNorms, "previous", "",
     "Which step's norm sets the threshold: previous needs one pass over the gradient, current two.",
     FIELD(compression.defaults.norm)},
    {"compression.rounding", Type::kChoice, 0, 0, kRoundings, "nearest", "",
     "Of l8, int8 and int4. stochastic has no bias of its own, for use without error feedback.",
     FIELD(compression.defaults.rounding)},
    {"compression.steps_per_octave", Type::kChoice, 0, 0, kSteps, "16", "",
     "Of l8: 16 halves the error and the range, which is 15 octaves below the largest element with 8.",
     FIELD(compression.defaults.steps_per_octave)},
    {"compression.error_feedback", Type::kChoice, 0, 0, kSwitch, "on", "",
     "Whether what a step does not send is added to the next one; off loses it.",
     FIELD(compression.defaults.error_feedback)},
    {"compression.threshold_scope", Type::kChoice, 0, 0, kScopes, "layer", "",
     "Of dropping: whether layers have thresholds of their own or share one in a bucket.",
     FIELD(compression.defaults.threshold_scope)},
    {"compression.norm_of", Type::kChoice, 0, 0, kNormsOf, "sum", "",
     "Of lads and laco: whether the threshold goes by the norm of the sum that is sent from, or by that of "
     "the fresh gradient, with a factor that grows along the ring.",
     FIELD(compression.defaults.norm_of)},
    {"compression.sparse_rows", Type::kChoice, 0, 0, kSwitch, "on", "",
     "Of lads and laco: on takes the norm over elements that are not zero, for embeddings.",
     FIELD(compression.defaults.sparse_rows)},
    {"compression.momentum",
     Type::kNumber,
     0,
     0.999,
     {},
     "0.9",
     "",
     "Momentum correction: the daemon keeps the momentum, before it compresses, and the optimiser's own is "
     "off. 0: none.",
     FIELD(compression.defaults.momentum)},
    {"compression.clip_norm",
     Type::kNumber,
     0,
     1e9,
     {},
     "1",
     "",
     "Local clipping, before momentum: no node adds more to a layer's result, in L2, than this divided by "
     "the square root of the number of nodes. Each block is held to its share by elements. 0: none.",
     FIELD(compression.defaults.clip_norm)},
    {"compression.warm_start", Type::kChoice, 0, 0, kWarmStarts, "exponential", "",
     "stages: dense, 25%, 6.25%, 1.56%, 0.4%, 0.1% until the target is reached. exponential: a fifth of "
     "warm_start_steps dense, then from 25% down by the same factor in every step.",
     FIELD(compression.defaults.warm_start)},
    {"compression.residuals", Type::kChoice, 0, 0, kResiduals, "bf16", "",
     "What residuals are kept in from step to step: bf16 takes half the memory; its rounding has no bias.",
     FIELD(compression.defaults.residuals)},
    {"compression.rules",
     Type::kRules,
     0,
     kMaxPolicyRules,
     {},
     "[{match: \"*.bias\", codec: none}]",
     "",
     "Ordered list; the first rule whose `match` fits the whole name of a layer (`*` any characters, `?` any "
     "one) gives that layer its settings: any of the options above. What a rule leaves out comes from those "
     "options.",
     FIELD(compression.rules)},
};
#undef FIELD

constexpr Section kSections[] = {
    {"node", "This node and the socket for its training processes."},
    {"peers", "The connections between the daemons of different nodes."},
    {"clocks", "The two clocks that bound every wait, and what follows from them."},
    {"transport", "How gradients travel between nodes."},
    {"engine", "Threads and polling."},
    {"quotas", "What one user can take of this node."},
    {"log", "Messages, on standard error."},
    {"plan", "How a bucket is reduced: what is not pinned here is chosen by measurement."},
    {"compression",
     "Which codec, with which settings, for which layers. The coordinator's daemon decides for the whole "
     "job."},
};

}  // namespace

std::span<const Option> options() {
  return kOptions;
}

std::span<const Section> sections() {
  return kSections;
}

const Option* find_option(std::string_view name) {
  const auto* found = std::ranges::find(kOptions, name, &Option::name);
  return found == std::end(kOptions) ? nullptr : found;
}

}  // namespace gradwire::config

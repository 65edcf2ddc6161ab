// Measures a codec on this machine, with data of its own.
#pragma once

#include <cstdint>
#include <functional>

#include "compress/reducer.h"
#include "config/base/result.h"
#include "daemon/planner/costs.h"

namespace gradwire::planner {

// Takes about 10 ms and 5 MB. Gradients are random and bell-shaped, sparse codecs are past their warm start
// and near their density. `now_ns` is a clock that goes on while the thread works, `cpu_ns` the thread's
// processor time (empty, or always 0: not known). Costs are the thread's own, times what it waited for the
// processor: where others want it, the engine will wait, too. kInvalidArgument: such settings do not exist.
Result<CodecCost> try_codec(const compress::CodecSettings& settings, const std::function<uint64_t()>& now_ns,
                            const std::function<uint64_t()>& cpu_ns = nullptr);

}  // namespace gradwire::planner

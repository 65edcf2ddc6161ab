#include "daemon/control/cost_documents.h"

#include <array>

#include "config/policy_json.h"
#include "daemon/control/plan_candidates.h"

namespace gradwire::control {
namespace {

std::array<double*, 4> figures(planner::LinkCost& link) {
  return {&link.latency_ns, &link.message_cpu_ns, &link.byte_cpu_ns, &link.byte_wire_ns};
}

std::array<double*, 8> figures(planner::CodecCost& codec) {
  return {&codec.first.fixed_ns,    &codec.first.unit_ns,         &codec.relay.fixed_ns,
          &codec.relay.unit_ns,     &codec.decode.fixed_ns,       &codec.decode.unit_ns,
          &codec.bytes_per_element, &codec.most_bytes_per_element};
}

template <typename Cost>
Json write(Cost cost) {
  Json list = Json::array();
  for (const double* const figure : figures(cost)) {
    list.push_back(*figure);
  }
  return list;
}

template <typename Cost>
bool read(const Json& list, Cost* cost) {
  const auto wanted = figures(*cost);
  if (!list.is_array() || list.size() != wanted.size()) {
    return false;
  }
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (!list[i].is_number()) {
      return false;
    }
    *wanted[i] = list[i].get<double>();
  }
  return true;
}

}  // namespace

Json measure_document(const Measure& measure) {
  Json list = Json::array();
  for (const config::PolicySettings& settings : measure.settings) {
    list.push_back(config::policy_to_json({settings, {}})["defaults"]);
  }
  return {{"type", "measure"}, {"round", measure.round}, {"settings", std::move(list)}};
}

Result<Measure> read_measure(const Json& document) {
  Fields fields(document);
  Measure measure;
  measure.round = fields.number("round", 1, UINT64_MAX);
  const Json* const list = fields.array("settings", kMaxCandidates);
  GRADWIRE_RETURN_IF_ERROR(fields.status().with_context("measure"));
  for (const Json& settings : *list) {
    const Result<config::CompressionPolicy> policy = config::policy_from_json(
        {{"version", config::kPolicyVersion}, {"defaults", settings}, {"rules", Json::array()}});
    GRADWIRE_RETURN_IF_ERROR(policy.status().with_context("measure"));
    measure.settings.push_back(policy->defaults);
  }
  return measure;
}

Json measured_document(const Measured& measured) {
  Json codecs = Json::array();
  for (const planner::CodecCost& codec : measured.costs.codecs) {
    codecs.push_back(write(codec));
  }
  return {{"type", "measured"},
          {"round", measured.round},
          {"link", write(measured.costs.link)},
          {"exact", write(measured.costs.exact)},
          {"codecs", std::move(codecs)}};
}

Result<Measured> read_measured(const Json& document, size_t codecs) {
  Fields fields(document);
  Measured measured;
  measured.round = fields.number("round", 1, UINT64_MAX);
  const Json* const link = fields.array("link", 4);
  const Json* const exact = fields.array("exact", 8);
  const Json* const list = fields.array("codecs", codecs);
  GRADWIRE_RETURN_IF_ERROR(fields.status().with_context("measured"));
  measured.costs.codecs.resize(codecs);
  bool good =
      list->size() == codecs && read(*link, &measured.costs.link) && read(*exact, &measured.costs.exact);
  for (size_t i = 0; good && i < codecs; ++i) {
    good = read((*list)[i], &measured.costs.codecs[i]);
  }
  if (!good) {
    return Status(Code::kCorrupt, "measured: not 4 figures of a link, 8 of exact and 8 of each of " +
                                      std::to_string(codecs) + " codecs");
  }
  GRADWIRE_RETURN_IF_ERROR(planner::check_costs(measured.costs).with_context("measured"));
  return measured;
}

}  // namespace gradwire::control

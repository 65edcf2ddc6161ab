#include "daemon/control/manifest.h"

#include <algorithm>
#include <unordered_set>

#include "compress/reducer.h"
#include "config/base/one_line.h"

namespace gradwire::control {
namespace {

std::string quoted(const std::string& name) {
  std::string text(1, '\'');
  text += clean(name, 200);
  text += '\'';
  return text;
}

const char* dtype_name(uint8_t dtype) {
  static constexpr const char* kNames[] = {"float32", "float16", "bfloat16", "float64",
                                           "int32",   "int64",   "uint8"};
  return dtype < std::size(kNames) ? kNames[dtype] : "unknown";
}

Status bad(const std::string& what) {
  return Status(Code::kInvalidArgument, "the bucket's manifest: " + what);
}

}  // namespace

Result<Manifest> read_manifest(const Json& document) {
  Fields fields(document);
  Manifest manifest;
  manifest.name = fields.text("name", 1, kMaxBucketName);
  manifest.dtype = fields.number<uint8_t>("dtype", 0, static_cast<uint8_t>(compress::Dtype::kUint8));
  manifest.flags = fields.number<uint32_t>("flags", 0, kBucketGradient);
  if (const auto found = document.find("layers");
      found != document.end() && found->is_array() && found->size() > kMaxLayers) {
    return bad("it has " + std::to_string(found->size()) + " layers and " + std::to_string(kMaxLayers) +
               " are possible: make several buckets");
  }
  const Json* layers = fields.array("layers", kMaxLayers);
  if (layers == nullptr) {
    return bad(fields.status().message());
  }
  std::unordered_set<std::string_view> names;
  uint64_t elements = 0;
  size_t bytes = 0;
  manifest.layers.reserve(layers->size());  // `names` has views into it
  for (const Json& layer : *layers) {
    const bool pair = layer.is_array() && layer.size() == 2 && layer[0].is_string() &&
                      layer[1].is_number_unsigned() && layer[1].get<uint64_t>() <= kMaxElements;
    const std::string_view text = pair ? std::string_view(layer[0].get_ref<const std::string&>()) : "";
    if (text.empty() || text.size() > kMaxLayerName) {
      return bad("layer " + std::to_string(manifest.layers.size()) +
                 " is not a pair of a name of 1 to 4096 bytes and a number of elements up to 2^40");
    }
    if (find_control(text)) {
      return bad("the name of layer " + std::to_string(manifest.layers.size()) +
                 " holds a control character: name it without");
    }
    manifest.layers.emplace_back(layer[0].get<std::string>(), layer[1].get<uint64_t>());
    const auto& [name, count] = manifest.layers.back();
    if (!names.insert(name).second) {
      return bad("layer '" + clean(name, 100) + "' is there twice; names must be unique in a bucket");
    }
    elements += count;
    bytes += name.size();
  }
  if (elements > kMaxElements || bytes > kMaxManifestBytes) {
    return bad("it has " + std::to_string(elements) + " elements and " + std::to_string(bytes) +
               " bytes of names; 2^40 and 8 MiB are the limits: make several buckets");
  }
  return manifest;
}

void write_manifest(const Manifest& manifest, Json* document) {
  (*document)["name"] = manifest.name;
  (*document)["dtype"] = manifest.dtype;
  (*document)["flags"] = manifest.flags;
  Json layers = Json::array();
  for (const auto& [name, elements] : manifest.layers) {
    layers.push_back(Json::array({name, elements}));
  }
  (*document)["layers"] = std::move(layers);
}

uint64_t manifest_elements(const Manifest& manifest) {
  uint64_t elements = 0;
  for (const auto& layer : manifest.layers) {
    elements += layer.second;
  }
  return elements;
}

std::string bucket_text(std::string_view name) {
  return "bucket '" + clean(name, 100) + "'";
}

std::string describe_difference(const Manifest& a, const std::string& a_place, const Manifest& b,
                                const std::string& b_place) {
  const auto sentence = [&](const std::string& what, const std::string& in_a, const std::string& in_b) {
    return bucket_text(a.name) + " differs between ranks: " + what + " " + in_a + " on " + a_place + " and " +
           in_b + " on " + b_place + "; create it alike on all ranks";
  };
  if (a.dtype != b.dtype) {
    return sentence("its dtype is", dtype_name(a.dtype), dtype_name(b.dtype));
  }
  if (a.flags != b.flags) {
    const auto kind = [](uint32_t flags) { return (flags & kBucketGradient) ? "a gradient" : "exact"; };
    return sentence("it is", kind(a.flags), kind(b.flags));
  }
  for (size_t i = 0; i < std::min(a.layers.size(), b.layers.size()); ++i) {
    const auto& [a_name, a_elements] = a.layers[i];
    const auto& [b_name, b_elements] = b.layers[i];
    const std::string layer = "layer " + std::to_string(i);
    if (a_name != b_name) {
      return sentence(layer + " is", quoted(a_name), quoted(b_name));
    }
    if (a_elements != b_elements) {
      return sentence(layer + " " + quoted(a_name) + " has", std::to_string(a_elements) + " elements",
                      std::to_string(b_elements));
    }
  }
  return sentence("it has", std::to_string(a.layers.size()) + " layers", std::to_string(b.layers.size()));
}

}  // namespace gradwire::control

#include "daemon/control/fields.h"

#include <algorithm>

#include "config/base/one_line.h"

namespace gradwire::control {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') {
    return c - '0';
  }
  if (c >= 'a' && c <= 'f') {
    return c - 'a' + 10;
  }
  return -1;
}

bool unsigned_value(const Json& value, uint64_t* out) {
  if (value.is_number_unsigned()) {
    *out = value.get<uint64_t>();
    return true;
  }
  if (value.is_number_integer() && value.get<int64_t>() >= 0) {
    *out = static_cast<uint64_t>(value.get<int64_t>());
    return true;
  }
  return false;
}

struct Shape {
  int depth = 0;      // of brackets
  size_t values = 0;  // an upper bound: commas, colons and brackets outside of texts
};

// Of what is not JSON it may say anything.
Shape measure(std::string_view text) {
  Shape shape;
  int depth = 0;
  bool in_text = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_text) {
      i += c == '\\' ? 1 : 0;
      in_text = c != '"';
    } else if (c == '"') {
      in_text = true;
    } else if (c == '{' || c == '[') {
      ++shape.values;
      shape.depth = std::max(shape.depth, ++depth);
    } else if (c == '}' || c == ']') {
      --depth;
    } else if (c == ',' || c == ':') {
      ++shape.values;
    }
  }
  return shape;
}

}  // namespace

Result<Json> parse_document(std::string_view text) {
  // Before the parser: its callback takes quadratic time where an array holds many objects, and a document
  // of nothing but brackets becomes a hundred times its size in memory.
  const Shape shape = measure(text);
  if (shape.depth > kMaxDepth) {
    return Status(Code::kCorrupt, "the document nests deeper than " + std::to_string(kMaxDepth) + " levels");
  }
  if (shape.values > kMaxValues) {
    return Status(Code::kInvalidArgument,
                  "the document holds " + std::to_string(shape.values) + " names and values and " +
                      std::to_string(kMaxValues) +
                      " are possible: say it in several, for instance in more buckets");
  }
  Json document = Json::parse(text, nullptr, false);
  if (document.is_discarded()) {
    return Status(Code::kCorrupt, "the document is not JSON in UTF-8");
  }
  const auto type = document.is_object() ? document.find("type") : document.end();
  if (!document.is_object() || type == document.end() || !type->is_string()) {
    return Status(Code::kCorrupt, "the document is not an object with a text member 'type'");
  }
  return document;
}

std::string write_document(const Json& document) {
  return document.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Fields::Fields(const Json& object) : object_(object) {
  if (!object.is_object()) {
    status_ = Status(Code::kCorrupt, "an object was expected");
  }
}

void Fields::complain(const char* name, const std::string& what) {
  if (status_.ok()) {
    status_ = Status(Code::kCorrupt, "member '" + std::string(name) + "' " + what);
  }
}

const Json* Fields::find(const char* name) {
  if (!status_.ok()) {
    return nullptr;
  }
  const auto found = object_.find(name);
  if (found == object_.end()) {
    complain(name, "is missing");
    return nullptr;
  }
  return &*found;
}

uint64_t Fields::integer(const char* name, uint64_t min, uint64_t max) {
  const Json* value = find(name);
  uint64_t number = 0;
  if (value == nullptr) {
    return min;
  }
  if (!unsigned_value(*value, &number) || number < min || number > max) {
    complain(name, "is not a whole number from " + std::to_string(min) + " to " + std::to_string(max));
    return min;
  }
  return number;
}

bool Fields::flag(const char* name) {
  const auto found = object_.is_object() ? object_.find(name) : object_.end();
  if (found == object_.end()) {
    return false;
  }
  if (!found->is_boolean()) {
    complain(name, "is not true or false");
    return false;
  }
  return found->get<bool>();
}

std::string Fields::text(const char* name, size_t min_bytes, size_t max_bytes) {
  const Json* value = find(name);
  if (value == nullptr) {
    return {};
  }
  const auto* string = value->get_ptr<const std::string*>();
  if (string == nullptr || string->size() < min_bytes || string->size() > max_bytes) {
    complain(name,
             "is not a text of " + std::to_string(min_bytes) + " to " + std::to_string(max_bytes) + " bytes");
    return {};
  }
  if (find_control(*string)) {
    complain(name, "has a control character");
    return {};
  }
  return *string;
}

std::string Fields::hex(const char* name, size_t min_bytes, size_t max_bytes) {
  const std::string digits = text(name, 2 * min_bytes, 2 * max_bytes);
  std::string bytes;
  bytes.reserve(digits.size() / 2);
  for (size_t i = 0; i < digits.size(); i += 2) {
    const int high = hex_digit(digits[i]);
    const int low = i + 1 < digits.size() ? hex_digit(digits[i + 1]) : -1;
    if (high < 0 || low < 0) {
      complain(name, "is not an even number of lower-case hex digits");
      return {};
    }
    bytes.push_back(static_cast<char>(high * 16 + low));
  }
  return bytes;
}

const Json* Fields::array(const char* name, size_t max_entries) {
  const Json* value = find(name);
  if (value == nullptr) {
    return nullptr;
  }
  if (!value->is_array() || value->size() > max_entries) {
    complain(name, "is not an array of at most " + std::to_string(max_entries) + " entries");
    return nullptr;
  }
  return value;
}

const Json* Fields::object(const char* name) {
  const Json* value = find(name);
  if (value != nullptr && !value->is_object()) {
    complain(name, "is not an object");
    return nullptr;
  }
  return value;
}

std::vector<uint32_t> Fields::numbers(const char* name, size_t max_entries, uint64_t max) {
  std::vector<uint32_t> values;
  const Json* entries = array(name, max_entries);
  if (entries == nullptr) {
    return values;
  }
  values.reserve(entries->size());
  for (const Json& entry : *entries) {
    uint64_t number = 0;
    if (!unsigned_value(entry, &number) || number > max) {
      complain(name, "has an entry that is not a whole number up to " + std::to_string(max));
      return {};
    }
    values.push_back(static_cast<uint32_t>(number));
  }
  return values;
}

std::string to_hex(std::string_view bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const char c : bytes) {
    text.push_back(kDigits[static_cast<unsigned char>(c) >> 4]);
    text.push_back(kDigits[static_cast<unsigned char>(c) & 15]);
  }
  return text;
}

std::string clean(std::string_view text, size_t limit) {
  return without_controls(beginning(text, limit), ' ');
}

}  // namespace gradwire::control

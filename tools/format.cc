#include "tools/format.h"

#include <time.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iterator>

#include "config/text.h"
#include "config/units.h"

namespace gradwire::tools {
namespace {

std::string print(const char* format, double value, const char* unit) {
  char text[64];
  std::snprintf(text, sizeof(text), format, value);
  return std::string(text) + unit;
}

// Columns that a text takes, where each character takes one.
size_t width(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

}  // namespace

std::string format_bytes(uint64_t bytes) {
  if (bytes < 1024) {
    return std::to_string(bytes) + " B";
  }
  static constexpr const char* kUnits[] = {" KiB", " MiB", " GiB", " TiB", " PiB", " EiB"};
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  while (value >= 1023.95 && unit < 5) {
    value /= 1024;
    ++unit;
  }
  return print("%.1f", value, kUnits[unit]);
}

std::string format_duration_ns(double ns) {
  if (!(ns > 0)) {
    return "-";
  }
  if (ns < 999.5e3) {
    return print(ns < 99.95e3 ? "%.1f" : "%.0f", ns / 1e3, " us");
  }
  if (ns < 999.5e6) {
    return print(ns < 9.995e6 ? "%.2f" : "%.1f", ns / 1e6, " ms");
  }
  return print("%.2f", ns / 1e9, " s");
}

std::string format_age(uint64_t seconds) {
  char text[64];
  const unsigned long long s = seconds;
  if (s < 60) {
    std::snprintf(text, sizeof(text), "%llus", s);
  } else if (s < 3600) {
    std::snprintf(text, sizeof(text), "%llum %02llus", s / 60, s % 60);
  } else if (s < 86400) {
    std::snprintf(text, sizeof(text), "%lluh %02llum", s / 3600, s / 60 % 60);
  } else {
    std::snprintf(text, sizeof(text), "%llud %02lluh", s / 86400, s / 3600 % 24);
  }
  return text;
}

std::string format_unix_time(uint64_t seconds) {
  const time_t time = static_cast<time_t>(seconds);
  tm parts{};
  char text[64] = "?";
  if (::gmtime_r(&time, &parts) != nullptr) {
    ::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S UTC", &parts);
  }
  return text;
}

std::string format_ratio(uint64_t raw, uint64_t wire) {
  if (wire == 0) {
    return "-";
  }
  return print("%.1f", static_cast<double>(raw) / static_cast<double>(wire), "x");
}

std::string format_fixed(double value, int digits) {
  if (!std::isfinite(value)) {
    return std::isnan(value) ? "nan" : "inf";
  }
  char text[400];
  std::snprintf(text, sizeof(text), "%.*f", digits, value);
  return text;
}

Result<uint64_t> parse_bytes(std::string_view text) {
  const auto bad = [&](const std::string& why) {
    return Status(Code::kInvalidArgument,
                  config::in_quotes(text) + " is not a size" + why +
                      "; give bytes from 1 to 1TiB, for example 4KiB or 25MiB (units B, KiB, MiB, GiB, TiB)");
  };
  const std::string copy(text);
  char* end = nullptr;
  const double number = copy.empty() || copy[0] == '-' ? 0 : std::strtod(copy.c_str(), &end);
  if (end == nullptr || end == copy.c_str() || !std::isfinite(number)) {
    return bad("");
  }
  const std::string_view name(end);
  const auto* unit = name.empty() ? std::begin(config::kSizeUnits)
                                  : std::ranges::find(config::kSizeUnits, name, &config::Unit::name);
  if (unit == std::end(config::kSizeUnits)) {
    const char first = static_cast<char>(std::toupper(static_cast<unsigned char>(name[0])));
    const bool decimal = name.size() <= 2 && std::string_view("KMGT").find(first) != std::string_view::npos &&
                         (name.size() == 1 || name[1] == 'B');
    return bad(decimal ? ": " + config::in_quotes(name) + " may mean 1000 or 1024; write " + first + "iB"
                       : ": the unit " + config::in_quotes(name) + " is not known");
  }
  const double bytes = number * unit->factor;
  if (bytes < 1 || bytes > 1099511627776.0 || bytes != std::floor(bytes)) {
    return bad("");
  }
  return static_cast<uint64_t>(bytes);
}

std::string Table::render(std::string_view indent) const {
  std::vector<size_t> widths;
  for (size_t c = 0; c < columns_.size(); ++c) {
    size_t widest = width(columns_[c].title);
    for (const auto& row : rows_) {
      widest = std::max(widest, width(row[c]));
    }
    widths.push_back(widest);
  }
  const auto line = [&](auto cell_of) {
    std::string out(indent);
    for (size_t c = 0; c < columns_.size(); ++c) {
      const std::string cell(cell_of(c));
      const std::string pad(widths[c] - width(cell), ' ');
      out += c == 0 ? "" : "  ";
      out += columns_[c].align == Align::kRight ? pad + cell : cell + pad;
    }
    out.erase(out.find_last_not_of(' ') + 1);
    return out + "\n";
  };
  std::string out = line([&](size_t c) { return columns_[c].title; });
  for (const auto& row : rows_) {
    out += line([&](size_t c) { return std::string_view(row[c]); });
  }
  return out;
}

}  // namespace gradwire::tools

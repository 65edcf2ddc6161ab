// Numbers and tables for people. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/base/one_line.h"
#include "config/base/result.h"

namespace gradwire::tools {

std::string format_bytes(uint64_t bytes);               // "0 B", "4.0 KiB", "25.0 MiB"
std::string format_duration_ns(double ns);              // "-" for 0; "12.3 us", "4.56 ms", "1.23 s"
std::string format_age(uint64_t seconds);               // "4s", "3m 12s", "2h 05m", "3d 04h"
std::string format_unix_time(uint64_t seconds);         // "2030-01-31 09:05:00 UTC"
std::string format_ratio(uint64_t raw, uint64_t wire);  // "12.3x"; "-" while nothing was sent
std::string format_fixed(double value, int digits);

// Text from elsewhere made safe for a terminal: control characters and broken UTF-8 become '?'.
inline std::string printable(std::string_view text) {
  return without_controls(text, '?');
}

// "4KiB", "1.5MiB", "1000": a number of bytes from 1 to 1 TiB, in the units of the configuration.
// kInvalidArgument.
Result<uint64_t> parse_bytes(std::string_view text);

// A table with aligned columns, two spaces apart; numbers go to the right.
class Table {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string_view title;
    Align align = Align::kLeft;
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  void add_row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  bool empty() const { return rows_.empty(); }
  // Every line starts with `indent` and ends with a line feed; no blanks at the end of a line.
  std::string render(std::string_view indent) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace gradwire::tools

// One event, one line: "event=peer_lost node=b cause=\"connection lost\"". Any thread, but never on the data
// path. Where the line goes, and that nobody waits for it, is log_writer.h's business.
//
// The same message again and again is written a few times a minute, then counted (log_limiter.h); what makes
// two messages the same is the event with its first two fields.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace gradwire::control {

using LogFields = std::initializer_list<std::pair<std::string_view, std::string>>;

// Values stand in quotes where they hold more than plain characters. Whatever a value holds, the result is
// one line of valid UTF-8 that a terminal shows as it is: control characters and odd bytes as \xNN.
std::string format_event(std::string_view event, LogFields fields);

// At most `limit` bytes of text for people to read beside other text: one line, with a '?' for every byte
// that format_event writes as \xNN.
std::string one_line(std::string_view text, size_t limit);

void log_info(std::string_view event, LogFields fields);
void log_warning(std::string_view event, LogFields fields);
void log_error(std::string_view event, LogFields fields);

// Writes how often messages were suppressed whose minute is over. To be called every now and then.
void log_suppressed();

}  // namespace gradwire::control

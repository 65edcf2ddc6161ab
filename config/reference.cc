#include "config/reference.h"

#include "config/format.h"

namespace gradwire::config {
namespace {

// Shared by both forms; no characters that markdown or troff would take for theirs.
constexpr std::string_view kIntroduction[] = {
    "The daemon reads one YAML file. Every option has a default, so an empty file is a valid one. An option "
    "is set, "
    "in rising precedence, by its default, by the environment where this page says so, by the file, and by "
    "--set "
    "SECTION.OPTION=VALUE on the command line, where the last one wins.",
    "Nothing is ignored: an unknown name, a name given twice, a value outside its limits or of another type "
    "stops "
    "the daemon with all errors of the file, each with file, line, column, what is allowed and an example. "
    "gradwired --check-config FILE does only that. gradwired --dump-config prints the values in effect, each "
    "with "
    "its default and where it comes from; the output is itself a valid file.",
    "A duration is a number with a unit: us, ms, s, min, h or d, for example 500ms or 1.5s. A number alone "
    "is refused, "
    "because nobody can tell seconds from milliseconds. A size is a number of bytes, or a number with the "
    "unit B, KiB, "
    "MiB, GiB or TiB; KB and MB are refused, because they mean two things. YAML anchors, aliases and tags "
    "are not "
    "supported; the file is at most 1MiB of UTF-8.",
};

constexpr std::string_view kExample =
    "peers:\n"
    "  key_file: /etc/gradwire/key\n"
    "clocks:\n"
    "  operation_timeout: 120s\n"
    "compression:\n"
    "  codec: laco\n"
    "  density: 0.01\n"
    "  rules:\n"
    "    - {match: \"*.bias\", codec: l8}\n"
    "    - {match: \"embedding.*\", codec: lads, density: 0.001}\n";

// A table cell: a bar would end it.
std::string cell(std::string_view text) {
  std::string out;
  for (const char c : text) {
    out += c == '|' ? std::string("\\|") : std::string{c};
  }
  return out;
}

std::string code(std::string_view text) {
  return std::string("`").append(cell(text)).append("`");
}

std::string roff(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else if (c == '\'') {
      out += "\\(aq";
    } else if (c != '`') {
      out += c;
    }
  }
  return out.starts_with('.') ? "\\&" + out : out;
}

}  // namespace

std::string reference_markdown() {
  std::string out =
      "# Configuration of gradwired\n\n"
      "<!-- Generated from the table in config/options.cc by gradwire-config-reference; edit that. -->\n\n";
  for (const std::string_view paragraph : kIntroduction) {
    out += std::string(paragraph) + "\n\n";
  }
  out += "```yaml\n" + std::string(kExample) + "```\n";
  for (const Section& section : sections()) {
    out += "\n## " + std::string(section.name) + "\n\n" + std::string(section.doc) + "\n\n";
    out += "| option | default | allowed | meaning |\n|---|---|---|---|\n";
    for (const Option& option : options()) {
      if (option.section() == section.name) {
        const std::string standard =
            option.default_note.empty() ? code(default_value(option)) : cell(option.default_note);
        out += "| " + code(option.leaf()) + " | " + standard + " | " + cell(allowed_values(option)) + " | " +
               cell(option.doc) + " For example " + code(option.example) + ". |\n";
      }
    }
  }
  return out;
}

std::string reference_man() {
  std::string out =
      ".TH GRADWIRED.YAML 5 \"\" gradwire \"File formats\"\n"
      ".SH NAME\ngradwired.yaml \\- configuration of gradwired\n.SH DESCRIPTION\n";
  for (const std::string_view paragraph : kIntroduction) {
    out += ".PP\n" + roff(paragraph) + "\n";
  }
  out += ".SH OPTIONS\n";
  for (const Section& section : sections()) {
    out += ".SS " + std::string(section.name) + "\n" + roff(section.doc) + "\n";
    for (const Option& option : options()) {
      if (option.section() == section.name) {
        out += ".TP\n.B " + std::string(option.name) + "\n" + roff(option.doc) +
               "\nDefault: " + roff(default_value(option)) + ". Allowed: " + roff(allowed_values(option)) +
               ". Example: " + roff(option.example) + ".\n";
      }
    }
  }
  return out + ".SH EXAMPLE\n.nf\n" + roff(kExample) + ".fi\n.SH SEE ALSO\n.BR gradwired (8)\n";
}

}  // namespace gradwire::config

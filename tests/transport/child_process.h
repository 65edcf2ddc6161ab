// A program started by a test, with pipes to its stdin and from its stdout; ended with the object.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

namespace gradwire::transport::testing {

inline std::string to_hex(std::string_view bytes) {
  std::string hex;
  for (const char byte : bytes) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", static_cast<unsigned char>(byte));
    hex += digits;
  }
  return hex;
}

inline std::string from_hex(std::string_view hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes += static_cast<char>(std::strtoul(std::string(hex.substr(i, 2)).c_str(), nullptr, 16));
  }
  return bytes;
}

class ChildProcess {
 public:
  explicit ChildProcess(std::vector<std::string> command) {
    int to_child[2], from_child[2];
    if (::pipe2(to_child, O_CLOEXEC) != 0 || ::pipe2(from_child, O_CLOEXEC) != 0) {
      std::abort();
    }
    std::vector<char*> arguments;
    for (auto& word : command) {
      arguments.push_back(word.data());
    }
    arguments.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(to_child[0], STDIN_FILENO);
      ::dup2(from_child[1], STDOUT_FILENO);
      ::execv(arguments[0], arguments.data());
      ::_exit(127);
    }
    ::close(to_child[0]);
    ::close(from_child[1]);
    in_ = to_child[1];
    out_ = from_child[0];
  }
  ~ChildProcess() {
    ::close(in_);
    ::close(out_);
    signal(SIGKILL);
    wait();
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  std::string read_line() {
    std::string line;
    char c = 0;
    while (::read(out_, &c, 1) == 1 && c != '\n') {
      line += c;
    }
    return line;
  }
  bool write_line(std::string line) {
    line += '\n';
    return ::write(in_, line.data(), line.size()) == static_cast<ssize_t>(line.size());
  }
  void signal(int number) {
    if (pid_ > 0) {
      ::kill(pid_, number);
    }
  }
  void wait() {
    if (pid_ > 0) {
      ::waitpid(pid_, nullptr, 0);
      pid_ = -1;
    }
  }

 private:
  pid_t pid_ = -1;
  int in_ = -1, out_ = -1;
};

}  // namespace gradwire::transport::testing

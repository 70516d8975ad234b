// Runs a part of a test in a process of its own: to limit it, kill it, or fork while threads run.
#pragma once

#include <exception>
#include <functional>
#include <string>

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace sluice::testing {

/// What `body` returned in a child process; "hangs" if it did not within `seconds`, "dies" if it ended otherwise.
inline std::string in_child(const std::function<std::string()>& body, int seconds = 20) {
  int ends[2];
  if (::pipe(ends) != 0) return "no pipe";
  const pid_t child = ::fork();
  if (child < 0) return "no process";  // kill(−1) would end every other one
  if (child == 0) {
    std::string said;
    try {
      said = body();
    } catch (const std::exception& e) { said = std::string("throws ") + e.what(); }
    said += '\n';
    const ssize_t put = ::write(ends[1], said.data(), said.size());
    ::_exit(put == static_cast<ssize_t>(said.size()) ? 0 : 1);  // no destructors: they belong to the parent
  }
  ::close(ends[1]);
  std::string said;
  pollfd waiting{ends[0], POLLIN, 0};
  if (::poll(&waiting, 1, seconds * 1000) == 0) {
    said = "hangs";
    ::kill(child, SIGKILL);
  } else {
    char text[1024];
    const ssize_t got = ::read(ends[0], text, sizeof text);
    said = got > 0 ? std::string(text, static_cast<std::size_t>(got) - 1) : "dies";
  }
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
  return said;
}

}  // namespace sluice::testing

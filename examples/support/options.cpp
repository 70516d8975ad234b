#include "support/options.h"

#include <sluice/core/number.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cmath>
#include <stdexcept>

namespace sluice::examples {

namespace {
struct HelpShown {};
}  // namespace

int run_program(int (*program)(int, char**), int argc, char** argv) try {
  return program(argc, argv);
} catch (const HelpShown&) {
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "error: %s\n", e.what());
  return 1;
}

void Options::add(std::string name, std::string& v, std::string help) {
  entries_.push_back({.name = std::move(name), .help = std::move(help), .text = &v});
}
void Options::add(std::string name, int64_t& v, std::string help, std::optional<int64_t> lowest) {
  entries_.push_back({.name = std::move(name), .help = std::move(help), .integer = &v, .lowest = lowest.value_or(std::min<int64_t>(v, 1))});
}
void Options::add(std::string name, double& v, std::string help) {
  entries_.push_back({.name = std::move(name), .help = std::move(help), .real = &v});
}
void Options::flag(std::string name, bool& v, std::string help) {
  entries_.push_back({.name = std::move(name), .help = std::move(help), .flag = &v});
}

void Options::parse(int argc, char** argv) const {
  for (int i = 1; i < argc; ++i) {
    std::string arg = argv[i];
    if (arg == "--help" || arg == "-h") {
      std::printf("%s: %s\n", program_.c_str(), purpose_.c_str());
      for (const Entry& e : entries_) {
        std::string now = e.text ? *e.text : e.integer ? std::to_string(*e.integer) : "";
        if (e.real) {
          char buf[32];
          std::snprintf(buf, sizeof buf, "%g", *e.real);
          now = buf;
        }
        std::printf("  --%-12s %s%s\n", e.name.c_str(), e.help.c_str(), now.empty() ? "" : (" (default " + now + ")").c_str());
      }
      throw HelpShown{};
    }
    auto fail = [&](const std::string& what) { throw std::runtime_error(program_ + ": " + what + "; see --help"); };
    if (!arg.starts_with("--")) fail("unexpected argument \"" + arg + "\"");
    std::size_t equals = arg.find('=');
    std::string name = arg.substr(2, equals == std::string::npos ? equals : equals - 2);
    const Entry* entry = nullptr;
    for (const Entry& e : entries_)
      if (e.name == name) entry = &e;
    if (!entry) fail("unknown option --" + name);
    if (entry->flag) {
      if (equals != std::string::npos) fail("--" + name + " takes no value");
      *entry->flag = true;
      continue;
    }
    std::string value;
    if (equals != std::string::npos) value = arg.substr(equals + 1);
    else if (i + 1 < argc) value = argv[++i];
    else fail("--" + name + " needs a value");
    if (entry->text) {
      *entry->text = value;
      continue;
    }
    bool read = false;
    if (entry->integer) {
      const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), *entry->integer);
      read = error == std::errc() && end == value.data() + value.size();
    } else {
      *entry->real = parse_double(value).value_or(NAN);
      read = std::isfinite(*entry->real);
    }
    if (!read) fail("--" + name + " needs a number, got \"" + value + "\"");
    if (entry->integer && *entry->integer < entry->lowest)
      fail("--" + name + " needs a number from " + std::to_string(entry->lowest) + " on, got " + value);
  }
}

}  // namespace sluice::examples

#include "support/options.h"

#include <sluice/core/number/number.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <iostream>
#include <stdexcept>

namespace sluice::examples {

namespace {

struct HelpShown {};

/// What the text spells, if that is of the option's type, or else the text.
Json value_of(const Option& o, const std::string& text) {
  if (o.type == Option::yes_no && (text == "true" || text == "1")) return true;
  if (o.type == Option::yes_no && (text == "false" || text == "0")) return false;
  int64_t i = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), i);
  if (o.type == Option::whole && error == std::errc() && end == text.data() + text.size()) return i;
  const std::optional<double> x = o.type == Option::real ? parse_double(text) : std::nullopt;
  return x ? Json(*x) : Json(text);
}

/// " (default 4)"; empty for a flag and for an empty text.
std::string default_of(const Option& o) {
  const Json now = o.get();
  const auto* text = now.as<std::string>();
  const auto* x = now.as<double>();
  const std::string shown = o.type == Option::yes_no ? "" : text ? *text : x ? str(*x) : to_text(now);
  return shown.empty() ? "" : " (default " + shown + ")";
}

}  // namespace

int run_program(int (*program)(int, char**), int argc, char** argv) try {
  int status = 0;
  try {
    status = program(argc, argv);
  } catch (const HelpShown&) {}
  std::cout.flush();
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0 || !std::cout)
    throw std::runtime_error("cannot write what the program prints");  // as on a full disk
  return status;
} catch (const std::exception& e) {
  std::fprintf(stderr, "error: %s\n", e.what());
  return 1;
}

void parse_flags(const std::string& program, const std::string& purpose, const OptionList& options, int argc,
                 char** argv) {
  std::vector<std::string> flags;
  for (const Option& o : options.all) flags.push_back("--" + o.name);
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i], flag = arg.substr(0, arg.find('='));
    if (arg == "--help" || arg == "-h") {
      std::printf("%s: %s\n", program.c_str(), purpose.c_str());
      for (const Option& o : options.all)
        std::printf("  --%-12s %s%s\n", o.name.c_str(), o.meaning, default_of(o).c_str());
      throw HelpShown{};
    }
    const auto at = std::find(flags.begin(), flags.end(), flag);
    if (at == flags.end())
      fail<ValueError>(program, ": unknown option \"", flag, "\"", did_you_mean(flag, flags), "; see --help");
    const Option& o = options.all[static_cast<std::size_t>(at - flags.begin())];
    const bool inside = flag.size() < arg.size();  // --name=VALUE
    if (o.type == Option::yes_no && !inside) {
      o.set(program, true);
      continue;
    }
    if (!inside && ++i == argc) fail<ValueError>(program, ": ", flag, " needs a value; see --help");
    o.set(program, value_of(o, inside ? arg.substr(flag.size() + 1) : argv[i]));
    o.check(program);
  }
}

}  // namespace sluice::examples

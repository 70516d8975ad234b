#include <sluice/core/number/number.h>

#include "support/catch.h"
#include "support/temp_folder.h"

#include <sluice/autograd/profile.h>
#include <sluice/core/text/print.h>

#include <clocale>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>

using namespace sluice;

namespace {

/// Takes a locale whose decimal point is a comma: one that this machine has, or one made in `folder`. False without.
bool take_comma(const std::string& folder) {
  for (const char* name : {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "nl_NL.UTF-8", "pt_BR.UTF-8", "de_DE"})
    if (std::setlocale(LC_NUMERIC, name)) return true;
  const std::string make = "localedef -i de_DE -f UTF-8 '" + folder + "de_DE.UTF-8' >/dev/null 2>&1";
  if (std::system(make.c_str()) == -1) return false;
  ::setenv("LOCPATH", folder.c_str(), 1);
  const bool taken = std::setlocale(LC_NUMERIC, "de_DE.UTF-8") != nullptr;
  ::unsetenv("LOCPATH");
  return taken;
}

}  // namespace

TEST_CASE("number: text is the nearest double, however small", "[core]") {
  const auto is = [](std::string_view text, double value) {
    const std::optional<double> read = parse_double(text);
    INFO(text);
    REQUIRE(read);
    CHECK(*read == value);
    CHECK(std::signbit(*read) == std::signbit(value));
  };
  is("0", 0), is("-0", -0.0), is("12", 12), is("-1.5e3", -1500), is("1E+2", 100);
  is(".5", 0.5), is("5.", 5), is("007", 7);
  is("0.1", 0.1), is("1.7976931348623157e308", std::numeric_limits<double>::max());
  is("9007199254740993", 9007199254740992.0);  // halfway: to even
  is("9007199254740993.00000000000000000000000000000000001", 9007199254740994.0);
  is("5e-324", 5e-324), is("2.4e-324", 0), is("-1e-400", -0.0), is("1e-99999999999999999999", 0), is("1e-310", 1e-310);
  is("0e999999", 0), is("0." + std::string(400, '0') + "1e401", 1);
  const double infinity = std::numeric_limits<double>::infinity();
  is("inf", infinity), is("-INF", -infinity), is("Infinity", infinity);
  CHECK(std::isnan(parse_double("nan").value()));
  CHECK(std::isnan(parse_double("-NaN").value()));
  CHECK(parse_double(std::string_view("1234", 2)) == 12.0);  // not what follows in memory
  for (const double nan : {std::nan(""), -std::nan("")}) CHECK(str(nan) == "nan");
}

TEST_CASE("number: what is no number, or too large, is nothing", "[core]") {
  for (const char* text : {"",         " ",
                           "-",        "+",
                           ".",        "e5",
                           "1e",       "1e+",
                           "+1",       "--1",
                           "-+1",      "+-1",
                           " 1",       "1 ",
                           "1,5",      "1.5.2",
                           "1_000",    "0x10",
                           "0x1p3",    "1e400",
                           "-1e400",   "1e99999999999999999999",
                           "nan(7)",   "in",
                           "infi",     "infinit",
                           "nane",     "1f",
                           "1.0f",     "abc",
                           "\xc3\xa9", "\t1",
                           "1\n"})
    CHECK(parse_double(text) == std::nullopt);
  CHECK(parse_double(std::string_view("1\0", 2)) == std::nullopt);
  CHECK(parse_double(std::string_view("1\0002", 3)) == std::nullopt);
}

TEST_CASE("number: the decimal point is the same in every locale", "[core]") {
  const testing::TempFolder folder;
  const std::string before = std::setlocale(LC_NUMERIC, nullptr);
  if (!take_comma(folder / "")) return;
  CHECK(parse_double("1.5") == 1.5);
  CHECK(parse_double("1,5") == std::nullopt);
  CHECK(detail::format("%6.2f|%s", 1.5, "x") == "  1.50|x");
  CHECK(str(0.1) == "0.1");
  CHECK_THAT(to_string(Tensor(1.5f)), Contains("1.5"));
  CHECK_THAT(describe(Tensor(1.5f)), Contains("mean=1.5"));
  CHECK_THAT(Profile().table(), Contains("0.000 ms"));
  std::setlocale(LC_NUMERIC, before.c_str());
}

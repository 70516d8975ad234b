#include <sluice/core/text/utf8.h>

#include "support/catch.h"

using namespace sluice::detail;

TEST_CASE("utf8: texts for messages are cut between characters", "[utf8]") {
  const std::string text = "a\u00e9\u20ac\U0001f600z";  // characters of 1, 2, 3, 4 and 1 bytes
  const std::string cut[] = {
      "…", "a…", "a…", "aé…", "aé…", "aé…", "aé\u20ac…", "aé\u20ac…", "aé\u20ac…", "aé\u20ac…", "aé\u20ac\U0001f600…"};
  for (std::size_t most = 0; most < text.size(); ++most) CHECK(shortened(text, most) == cut[most]);
  CHECK(shortened(text, text.size()) == text);
  CHECK(shortened("", 0).empty());
}

TEST_CASE("utf8: the characters of a text", "[utf8]") {
  const char32_t chars[] = {U'a', U'\u00e9', U'\u20ac', U'\U0001f600', U'\0', U'z'};
  std::string text;
  for (const char32_t c : chars) append_utf8(text, c);
  CHECK(text.size() == 12);
  const char* p = text.data();
  std::size_t at = 0;
  for (const char32_t c : chars) {
    const std::size_t end = char_end(text, at);
    for (std::size_t i = at; i < end; ++i) CHECK(char_begin(text, i) == at);
    CHECK(next_char(p) == c);
    CHECK(static_cast<std::size_t>(p - text.data()) == end);
    at = end;
  }
  CHECK(at == text.size());

  std::string valid;
  CHECK(take_utf8(valid, text) == text.size());
  CHECK(valid == text);
  valid.clear();
  CHECK(take_utf8(valid, "a\xE2\x82", false) == 1);  // may go on
  CHECK(valid == "a");
  valid.clear();
  CHECK(take_utf8(valid, "a\xE2\x82z\xff") == 5);
  CHECK(valid == "a\uFFFDz\uFFFD");
}

#include <sluice/core/error.h>

#include <cstdio>
#include <cstdlib>

namespace sluice {

void append_text(std::string& s, std::string_view v) { s += v; }
void append_text(std::string& s, char v) { s += v; }
void append_text(std::string& s, bool v) { s += v ? "true" : "false"; }
void append_text(std::string& s, int v) { s += std::to_string(v); }
void append_text(std::string& s, unsigned v) { s += std::to_string(v); }
void append_text(std::string& s, long v) { s += std::to_string(v); }
void append_text(std::string& s, long long v) { s += std::to_string(v); }
void append_text(std::string& s, unsigned long v) { s += std::to_string(v); }
void append_text(std::string& s, unsigned long long v) { s += std::to_string(v); }
void append_text(std::string& s, double v) {
  char buf[32];
  for (int digits : {6, 9, 17}) {
    std::snprintf(buf, sizeof buf, "%.*g", digits, v);
    if (std::strtod(buf, nullptr) == v) break;
  }
  s += buf;
}

namespace detail {

void TextPart::append_literal(std::string& s, const void* text) { s += static_cast<const char*>(text); }

std::string join(std::initializer_list<TextPart> parts) {
  std::string s;
  for (const TextPart& p : parts) p.append(s, p.value);
  return s;
}

}  // namespace detail

}  // namespace sluice

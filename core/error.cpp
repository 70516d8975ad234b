#include <sluice/core/error.h>

#include <sluice/core/kernel/running_module.h>
#include <sluice/core/number/number.h>

namespace sluice {

void append_text(std::string& s, std::string_view v) { s += v; }
void append_text(std::string& s, char v) { s += v; }
void append_text(std::string& s, bool v) { s += v ? "true" : "false"; }
void append_text(std::string& s, double v) {
  if (v != v) return append_text(s, "nan");  // without the sign, which x86 sets in the NaNs that it makes
  std::string text;
  for (int digits : {6, 9, 17}) {
    text = detail::format("%.*g", digits, v);
    if (parse_double(text) == v) break;
  }
  s += text;
}

void detail::TextPart::append_literal(std::string& s, const void* text) { s += static_cast<const char*>(text); }

std::string detail::join(std::initializer_list<TextPart> parts) {
  std::string s;
  for (const TextPart& p : parts) p.append(s, p.value);
  return s;
}

std::string detail::error_text(std::initializer_list<TextPart> parts) {
  std::string s = join(parts);
  append_place(s);
  return s;
}

}  // namespace sluice

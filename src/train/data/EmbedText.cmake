# cmake -DINPUT=file.txt -DOUTPUT=file.cpp -P EmbedText.cmake
# The text as a literal, so that the program trains without any other file.
file(READ ${INPUT} content)
file(WRITE ${OUTPUT} "#include \"train/data/shipped_text.h\"

namespace flashlab::train {

std::string_view shipped_text() noexcept {
  static constexpr char kText[] = R\"~~~~(${content})~~~~\";
  return {kText, sizeof kText - 1};
}

}  // namespace flashlab::train
")

# cmake -DINPUT=file.txt -DOUTPUT=file.cpp -DHEADER=a/b.h -DNAMESPACE=n -DFUNCTION=f
#   -P EmbedText.cmake
# The text as a literal behind `std::string_view NAMESPACE::FUNCTION()`, which HEADER declares, so
# that the program needs no other file.
file(READ ${INPUT} content)
file(WRITE ${OUTPUT} "#include \"${HEADER}\"

namespace ${NAMESPACE} {

std::string_view ${FUNCTION}() noexcept {
  static constexpr char kText[] = R\"~~~~(${content})~~~~\";
  return {kText, sizeof kText - 1};
}

}  // namespace ${NAMESPACE}
")

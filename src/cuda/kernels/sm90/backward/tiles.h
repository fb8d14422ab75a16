#pragma once

// How the backward kernel cuts a problem, and its shared memory: the same text on host and device.
// Nothing is included, so that both can read it.

namespace flashlab::device {

/// The names are the kernel's Config constants.
struct Sm90BackwardTiling {
  int tile_q = 64;     ///< queries of a step
  int tile_k = 128;    ///< keys of a tile, 64 for each consumer warpgroup
  int tile_dim = 128;  ///< features of a tile (kDimUnit); those beyond the head dims are zeros
  int stages = 2;      ///< tiles of queries under way
  /// Tiles of keys under way. 1: a block for each, but in ragged calls without dropout.
  int key_stages = 1;
  bool dropout = false;  ///< draws lie beside the tiles of queries
  bool ragged = false;   ///< what a block knows of its tiles' sequences lies there, too
  bool abreast = false;  ///< the query heads of a group go abreast (KeyOrder::wave)
  bool parts = false;    ///< tiles of keys are cut (KeyParts)

  /// Whether blocks stay, and take tile of keys after tile of keys.
  constexpr bool stays() const { return key_stages > 1 || (ragged && !dropout); }
  /// Of what a block knows of its tiles of keys: beside K and V; where these have one place, of the
  /// tile whose gradients are stored, of the one after it, and of the one that is looked for.
  constexpr int places() const { return stays() && key_stages == 1 ? 3 : key_stages; }
};

/// How tiles of keys are cut by queries where there are too few of them. A tile has a stream of
/// steps, each with a tile of queries; a part is a stretch of it.
struct KeyParts {
  int most;   ///< of a tile
  int least;  ///< of a tile that has as many steps
  int steps;  ///< of a part at most, where a tile has more than `least`

  constexpr int of(int tile_steps) const {
    const int wanted = (tile_steps + steps - 1) / steps;
    const int parts = wanted < least ? least : wanted;
    return parts < tile_steps ? parts : tile_steps;
  }
  /// The first step of a part, of so many.
  static constexpr int first(int tile_steps, int part, int parts) {
    return static_cast<int>(static_cast<long long>(tile_steps) * part / parts);
  }
};

/// In which order tiles of keys are worked off. The first heads follow one another, each with its
/// tiles from the first on; the others come in sections, tile after tile of all heads of a section.
/// So with a causal mask a section's longest tiles begin first, and its shortest ones end it.
struct KeyOrder {
  int heads;    ///< of keys, of all entries of the batch
  int tiles;    ///< of a head
  int alone;    ///< heads that follow one another
  int section;  ///< heads of a section; the last one may have fewer
  int wave;     ///< tiles worked off at once, where a group's heads go abreast
  KeyParts parts;

  /// Where heads go abreast, whether the tile at a place meets its queries from the last ones back.
  /// A wave of causal tiles that begin together is in step from the last queries back, and ends
  /// tile by tile, the shortest first; the next one then begins so, and is in step from each
  /// tile's first queries on. Its tiles end together. A section begins with a wave.
  constexpr int first_of_section(int head) const {
    return head < alone ? head : alone + (head - alone) / section * section;
  }
  constexpr int heads_from(int first) const {
    const int left = first < alone ? 1 : heads - first;
    return left < section ? left : section;
  }
  constexpr bool goes_back(int place) const {
    const int first = first_of_section(place / tiles) * tiles;
    return ((first + wave / 2) / wave + (place - first) / wave) % 2 == 0;
  }
  /// Which tile comes at a place of the order; counted head by head.
  constexpr int tile_at(int place) const {
    if (place < alone * tiles) return place;
    const int first = first_of_section(place / tiles), section_heads = heads_from(first);
    const int rest = place - first * tiles;
    return (first + rest % section_heads) * tiles + rest / section_heads;
  }
  /// Of the query heads of a section the first ones of all groups are worked off first. Which one
  /// comes at a place; `group`: query heads of a key head.
  constexpr int query_head_at(int place, int group) const {
    if (place < alone * group) return place;
    const int first = first_of_section(place / group), section_heads = heads_from(first);
    const int rest = place - first * group;
    return (first + rest % section_heads) * group + rest / section_heads;
  }
};

/// Dynamic shared memory of a block: sizeof(Sm90BackwardStorage).
constexpr int shared_bytes(const Sm90BackwardTiling& t) {
  constexpr int kScoreStages = 2, kAlignment = 1024;
  // DropoutTile, DropoutWords, Sm90Sequence, Sm90FoundTile, a structure of none of them.
  constexpr int kDrawnBytes = 1536, kWordsBytes = 16, kSequenceBytes = 128, kFoundBytes = 16,
                kEmptyBytes = 16;
  const int keys = t.key_stages * (2 * t.tile_k * t.tile_dim * 2);
  const int queries = t.stages * 2 * t.tile_q * (t.tile_dim * 2 + 4);
  const int scores = kScoreStages * t.tile_k * t.tile_q * 2;
  const int barriers = 16 * (t.key_stages + t.stages + kScoreStages);
  const int parts = (t.dropout ? t.stages * kDrawnBytes + kWordsBytes : 0) +
                    (t.ragged ? t.places() * kSequenceBytes : 0) +
                    (t.ragged && t.stays() ? kFoundBytes : 0) +
                    (t.dropout || t.ragged ? 0 : kEmptyBytes);
  const int work = t.places() * 4;
  const int bytes = keys + queries + scores + barriers + parts + work;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace flashlab::device

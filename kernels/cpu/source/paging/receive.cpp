// Reads a piece of KV from a socket into its blocks, and sums up its units as they are written.
//
// The system copies into a buffer that stays in the caches, which one pass moves from there to its
// place past the caches, as `baton_checksums` does; so a block's memory is written once and read
// not at all. One call reads a whole piece: the caller's other threads run meanwhile, and none of
// its blocks is a step of an interpreter.
#include <cstring>

#include <sys/socket.h>

#include "checksum.h"
#include "piece_stream.h"

// How far a piece has come. It begins as zeros, and is kept until the piece is there.
struct Receipt {
  uint8_t header[HEADER_BYTES];
  int64_t num_header_bytes;
  int64_t num_units;
  // Bytes in the buffer: of the units that come next.
  int64_t num_bytes;
  int64_t num_trailer_bytes;
};

namespace {

// Waits for `size` bytes of which `done` are there. A negative errno is what went wrong.
int fill(int socket, uint8_t* memory, int64_t size, int64_t& done) {
  if (done == size) return ALL;
  const ssize_t got = recv(socket, memory + done, size_t(size - done), MSG_WAITALL);
  if (!got) return ENDED;
  if (got < 0) return is_passing(errno) ? NOT_YET : -errno;
  done += got;
  return done == size ? ALL : NOT_YET;
}

}  // namespace

// A header that is as `expected`, else ANOTHER, the units of all `targets`, with a checksum of each,
// and a trailer of so many bytes. NOT_YET: the socket's own time limit is over, or `limit_s`; to be
// called again, with the same buffer of `buffer_bytes`, no fewer than a unit has. ENDED: by the
// other end.
extern "C" int64_t baton_receive(int64_t socket, const Blocks* targets, int64_t num_units,
                                 int64_t unit_bytes, const uint8_t* expected, uint8_t* buffer,
                                 int64_t buffer_bytes, double limit_s, Receipt* receipt,
                                 uint64_t* checksums, uint8_t* trailer, int64_t trailer_bytes) {
  if (int why = fill(int(socket), receipt->header, HEADER_BYTES, receipt->num_header_bytes))
    return why;
  if (memcmp(receipt->header, expected, size_t(HEADER_BYTES))) return ANOTHER;

  const int64_t num_blocks = targets->num_rows * targets->num_starts;
  const int64_t num_all = num_blocks * num_units, most = buffer_bytes / unit_bytes;
  const double until = seconds() + limit_s;
  while (receipt->num_units < num_all) {
    const int64_t left = num_all - receipt->num_units, count = left < most ? left : most;
    if (int why = fill(int(socket), buffer, count * unit_bytes, receipt->num_bytes))
      return copies_end(), why;
    for (int64_t i = 0; i < count; i++) {
      const int64_t number = receipt->num_units + i, block = number / num_units;
      const Cursor at{targets, block / targets->num_starts, block % targets->num_starts};
      const uint8_t* source = buffer + i * unit_bytes;
      checksums[number] = checksum(at.where() + number % num_units * unit_bytes, source,
                                   unit_bytes, source);
    }
    receipt->num_units += count;
    receipt->num_bytes = 0;
    if (receipt->num_units < num_all && seconds() > until) return copies_end(), NOT_YET;
  }
  copies_end();
  return fill(int(socket), trailer, trailer_bytes, receipt->num_trailer_bytes);
}

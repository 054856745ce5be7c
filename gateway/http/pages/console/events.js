/* Server-sent events out of text that comes in pieces, which end wherever the network cut them. */

export class EventReader {
  #rest = "";

  /** The data of each event that this piece completes. */
  read(piece) {
    const blocks = (this.#rest + piece.replaceAll("\r", "")).split("\n\n");
    this.#rest = blocks.pop();
    return blocks.map(dataOf).filter((data) => data !== null);
  }
}

function dataOf(block) {
  const lines = block.split("\n").filter((line) => line.startsWith("data:"));
  return lines.length ? lines.map((line) => line.slice(5).replace(/^ /, "")).join("\n") : null;
}

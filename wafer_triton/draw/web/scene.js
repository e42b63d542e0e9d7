// A schedule as Python wrote it (draw/scenes.py), read for one moment: which tile is where, what a core does in a round.
// Position 0 is the start; position p is the moment after round p - 1, which is then the round in view.
class Scene {
  constructor(data) {
    Object.assign(this, data);
    this.height = data.mesh.rows * data.mesh.fold[0];
    this.width = data.mesh.cols * data.mesh.fold[1];
    this.length = data.rounds.length;
    this.ways = ["east", "west", "south", "north"].filter((way) => data.frames.some((frame) => way in frame.links));
    this.pairs = new Map();
    if (data.detailed) this.rewind();
  }

  kindAt(position) {
    return position > 0 ? this.kinds[this.rounds[Math.min(position, this.length) - 1]] : null;
  }

  // The row and the column of a core, and the core at them; null beside the mesh.
  place(core) { return [Math.floor(core / this.width), core % this.width]; }

  core(row, column) {
    return row >= 0 && column >= 0 && row < this.height && column < this.width ? Math.trunc(row) * this.width + Math.trunc(column) : null;
  }

  // The row and the column of the physical core that does a core's work.
  physical(core) { return this.place(core).map((at, axis) => Math.floor(at / this.mesh.fold[axis])); }

  intervalAt(position) { return this.runAt(this.timeline, position); }

  frameAt(position) { return this.runAt(this.frames, position); }

  runAt(runs, position) {
    const round = Math.min(position, this.length) - 1;
    return runs.find(({ first, last }) => first <= round && round <= last) ?? null;
  }

  // The links of a frame, or of all frames added up: for each direction an array, row by row.
  linksOf(frame) {
    if (frame) return frame.links;
    if (!this.whole) {
      this.whole = {};
      for (const { links } of this.frames) {
        for (const [way, load] of Object.entries(links)) {
          const sum = (this.whole[way] ??= new Float64Array(load.length));
          load.forEach((bytes, at) => { sum[at] += bytes; });
        }
      }
    }
    return this.whole;
  }

  // Cores at positions `at` of lines along an axis, line by line; -1 stands for none.
  cores({ axis, at, lines }) {
    const own = Array.isArray(at[0]);
    const across = lines ?? Array.from({ length: axis === "x" ? this.height : this.width }, (_, line) => line);
    return across.flatMap((line, number) => (own ? at[number] : at).map((position) =>
      position < 0 ? -1 : axis === "x" ? line * this.width + position : position * this.width + line));
  }

  // The moves of a kind of round, [{src, dst, axis, send: cores, recv: cores}], and the cores of its local operations.
  movesOf(kind) {
    if (!this.pairs.has(kind)) {
      const { exchanges, locals } = this.moves.kinds[kind];
      const all = Array.from({ length: this.width * this.height }, (_, core) => core);
      this.pairs.set(kind, {
        exchanges: exchanges.map(({ axis, src, dst, send, recv, lines }) => ({
          axis, src, dst, send: this.cores({ axis, at: send, lines }), recv: this.cores({ axis, at: recv, lines }),
        })),
        locals: locals.map((op) => ({ ...op, cores: op.where ?? all })),
      });
    }
    return this.pairs.get(kind);
  }

  rewind() {
    const count = this.width * this.height;
    this.at = 0;
    this.moved = [];
    // of every slot of a buffer: the number of the buffer and the core where its tile began, as one number; -1: none
    this.slots = this.buffers.map(({ given, slots }, number) => Array.from({ length: slots }, () =>
      Int32Array.from({ length: count }, (_, core) => (given ? number * count + core : -1))));
    this.last = this.slots.map(([tiles], number) => tiles.map((tile) => (tile < 0 ? -1 : tile - number * count)));
    // of every slot, and of the tile in `last`: how many partial results it is the sum of
    this.sums = this.buffers.map(({ given, slots }) => Array.from({ length: slots }, () => new Int32Array(count).fill(given ? 1 : 0)));
    this.parts = this.sums.map(([sums]) => sums.slice());
    this.inside = this.buffers.map((_, number) => new Int32Array(count).fill(number));  // the buffer that holds the tile in `last`
    this.filled = this.buffers.map(({ slots }) => Array.from({ length: slots }, () => new Uint8Array(count)));
  }

  // How many slots of a buffer that began empty each core has filled; a tile leaves a slot for another of its buffer.
  fill(number) {
    return this.filled[number].reduce((sums, slot) => sums.map((sum, core) => sum + slot[core]), new Int32Array(this.width * this.height));
  }

  // Follow all rounds once: how often tiles of each buffer move, and how many partial results its sums have at most.
  survey() {
    if (this.surveyed) return this.surveyed;
    const here = this.at, moves = this.buffers.map(() => 0), most = this.buffers.map(() => 1), count = this.width * this.height;
    this.rewind();
    for (let position = 1; position <= this.length; position += 1) {
      this.goTo(position);
      for (const { from, to, tile } of this.moved) if (from !== to && tile >= 0) moves[Math.floor(tile / count)] += 1;
      this.parts.forEach((parts, number) => { most[number] = parts.reduce((high, sum) => Math.max(high, sum), most[number]); });
    }
    this.goTo(here);
    this.surveyed = { moves, most };
    return this.surveyed;
  }

  // The moment to open a page on: the end of the first run with messages of the step that takes the most cycles,
  // in a frame of that step alone if there is one.
  telling() {
    if (this.fills?.length) return this.length;
    const busy = this.timeline.filter(({ first }) => this.kinds[this.rounds[first]].messages);
    const step = busy.reduce((best, { label }) => (best !== null && this.cycles[best] >= this.cycles[label] ? best : label), null);
    if (step === null) return 0;
    const own = busy.filter(({ label }) => label === step), labels = this.rounds.map((kind) => this.kinds[kind].label);
    const alone = own.find(({ last }) => { const frame = this.frameAt(last + 1); return labels.slice(frame.first, frame.last + 1).every((label) => label === step); });
    return (alone ?? own[0]).last + 1;
  }

  // The pictures of tiles: the buffer that moves most comes first, by the parts of its sums if it has some.
  pictures() {
    if (!this.detailed) return [];
    const { moves, most } = this.survey(), order = this.buffers.map((_, at) => at).sort((a, b) => moves[b] - moves[a] || a - b);
    const fills = this.fills.map((name) => `fill ${name}`);
    return fills.concat(order.flatMap((at) => {
      const tiles = `tiles ${this.buffers[at].name}`, parts = most[at] > 1 ? [`parts ${this.buffers[at].name}`] : [];
      return moves[at] ? [...parts, tiles] : [tiles, ...parts];
    }));
  }

  // A picture as asked; of a buffer that this schedule lacks, its own first one.
  pictureFor(asked) {
    const own = this.pictures();
    return !/^(tiles|parts|fill) /.test(asked) || own.includes(asked) ? asked : own[0] ?? "links-round";
  }

  slotOf([, index, axis], core) {
    if (!Array.isArray(index)) return index ?? 0;
    return index[axis === "x" ? core % this.width : Math.floor(core / this.width)];
  }

  write(slot, core, tile, sum) {
    const held = this.slots[slot[0]], sums = this.sums[slot[0]], count = this.width * this.height;
    held.forEach((tiles, number) => {
      if (slot[1] !== null && number !== this.slotOf(slot, core)) return;
      [tiles[core], sums[number][core]] = [tile, sum];
      this.filled[slot[0]][number][core] = 1;
    });
    if (tile < 0) return;
    const from = Math.floor(tile / count);
    [this.last[from][core], this.parts[from][core], this.inside[from][core]] = [tile % count, sum, slot[0]];
  }

  sumOf(slot, core) {
    return this.sums[slot[0]][this.slotOf(slot, core)][core];
  }

  // Follow all tiles to a position; `moved` are then the moves of the round in view, [{from, to, tile}].
  goTo(position) {
    const end = Math.min(position, this.length);
    if (end < this.at) this.rewind();
    while (this.at < end) {
      const { exchanges, locals } = this.movesOf(this.rounds[this.at]);
      [this.before, this.partsBefore, this.insideBefore] = [this.last, this.parts, this.inside].map((of) => of.map((tiles) => tiles.slice()));
      this.moved = exchanges.flatMap(({ axis, src, dst, send, recv }) => send.flatMap((from, n) => (from < 0 || recv[n] < 0 ? [] : [{
        axis, from, to: recv[n], dst, src, tile: this.slots[src[0]][this.slotOf(src, from)][from], sum: this.sumOf(src, from),
      }])));
      for (const { from, src, dst } of this.moved) if (src[0] === dst[0] && src[1] !== null) this.filled[src[0]][this.slotOf(src, from)][from] = 0;
      for (const { to, dst, tile, sum } of this.moved) this.write(dst, to, tile, sum);
      for (const { op, outs, ins, cores, sums } of locals) {
        for (const core of cores) {
          if (core < 0) continue;
          const copied = op === "copy" ? this.slots[ins[0][0]][this.slotOf(ins[0], core)][core] : null;
          const sum = op === "copy" ? this.sumOf(ins[0], core) : sums === "inputs" ? ins.reduce((all, slot) => all + this.sumOf(slot, core), 0)
            : sums === "output" ? this.sumOf(outs[0], core) + 1 : 1;
          for (const out of outs) this.write(out, core, copied ?? out[0] * this.width * this.height + core, sum);
        }
      }
      this.at += 1;
    }
    if (position === 0) this.moved = [];
  }

  coordinates(core) { return `(${this.place(core).join(", ")})`; }

  bytesOf([buffer, index]) {
    return this.buffers[buffer].bytes * (index === null ? this.buffers[buffer].slots : 1);
  }

  // Links between two cores of a line, between physical cores.
  hops(from, to) {
    const [row, column] = this.physical(from), [lastRow, lastColumn] = this.physical(to);
    return Math.abs(row - lastRow) + Math.abs(column - lastColumn);
  }

  // The colours that the router of a core holds, along x and along y.
  colours(core) {
    const [row, column] = this.physical(core);
    const along = (circuits, line, at) => circuits.flatMap(([low, high, colour]) =>
      low <= at && at <= high && colour[line] >= 0 ? [colour[line]] : []);
    const sorted = (numbers) => [...new Set(numbers)].sort((a, b) => a - b);
    return {
      x: sorted(along(this.routes.x, row, column)),
      y: sorted(along(this.routes.y, column, row)),
    };
  }

  // What a core holds of a buffer at a position, as Python summarised it; null before anything is known.
  valuesOf(buffer, core, position) {
    for (let round = Math.min(position, this.length) - 1; round >= 0; round -= 1) {
      const here = this.values.rounds[round][buffer];
      if (here) return here[core];
    }
    return this.values.start[buffer]?.[core] ?? null;
  }
}

// Figures of a scene by step, by buffer and by round, for charts and tables.
function prepare(scene) {
  const cycles = {}, bounds = {}, held = {}, perRound = { hops: [], link_bytes: [], cycles: [] };
  for (const { label, start, end, first, last, bounds: own } of scene.timeline) {
    cycles[label] = (cycles[label] ?? 0) + end - start;
    bounds[label] = Object.fromEntries(Object.entries(own).map(([name, value]) => [name, value + (bounds[label]?.[name] ?? 0)]));
    for (let round = first; round <= last; round += 1) perRound.cycles.push((end - start) / (last - first + 1));
  }
  for (const kind of scene.rounds) for (const field of ["hops", "link_bytes"]) perRound[field].push(scene.kinds[kind][field]);
  scene.buffers.forEach(({ name, live }) => { if (live) held[name] = live[2] * (Math.min(live[1], scene.length - 1) - live[0] + 1); });
  const bufferOrder = Object.keys(held).sort((a, b) => held[b] - held[a]);
  Object.assign(scene, { cycles, bounds, held, perRound, bufferOrder });
}

// The sum of numbers by name over all scenes.
function together(scenes, field) {
  const sums = {};
  for (const scene of scenes) for (const [name, size] of Object.entries(scene[field])) sums[name] = (sums[name] ?? 0) + size;
  return sums;
}

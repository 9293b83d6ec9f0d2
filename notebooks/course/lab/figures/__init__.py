"""Every picture of the course. drawsvg and matplotlib are imported on first use.

As SVG, with drawsvg: the same bytes on every machine, so that nbval compares them.
    step        one step of data parallel training, the first picture
    player      all-reduces that move, from a run of the function
    lanes       a card for rows of boxes over one axis: bars draws on it
    bars        how much, and whose
    graph       what goes from whom to whom
    boxes       who is where, and what belongs together
    svg         the one look of all these

As PNG, with matplotlib:
    plot        charts in one look: lines, bars, bands, tables
"""

"""Every picture of the course. What draws is imported when a picture is drawn.

As SVG, with drawsvg: the same bytes on every machine, so that nbval compares them.
    step        one step of data parallel training, the first picture  lesson 00
    split       what three ways to split LeNet send                    lesson 01
    pipeline    who works when                                         lesson 01
    memory      which ranks hold which memory                          lesson 02
    player      all-reduces that move, from a run of the function      lesson 03
    race        several of them on one clock                           lesson 03
    shards      the rows of each rank                                  lesson 04
    weights     how much each image counts                             lesson 05
    sampler     which rank sees which example, epoch by epoch          lesson 10
    svg         the one look of all these; places: where ranks stand

As PNG, with matplotlib:
    diagrams    what happens where, in the ranks' colours
    plot        charts in one look: lines, bars, bands
    overlay     masks over images
"""

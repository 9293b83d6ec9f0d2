"""Every picture of the course, with matplotlib, which is imported when one is drawn.

    diagrams    what happens where, in the ranks' colours
    plot        charts in one look: lines, bars, bands
    overlay     masks over images
"""

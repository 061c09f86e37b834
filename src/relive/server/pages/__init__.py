"""Pages for people in a browser: what was recorded, what was learnt from it, and what it cost.

Made on the server from templates that escape every text; what is served besides lies in ``assets``, the minified htmx
and uPlot of their npm packages among it, with their licences.
"""

"""Shapes only: every object that crosses the wire, with no behaviour beyond (de)normalising."""

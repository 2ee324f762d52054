"""How packets go: paths become flow rules, and switches are kept holding exactly those."""

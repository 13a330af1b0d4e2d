"""A certificate as a page for people: as text, Markdown or HTML; and a page that verifies others."""

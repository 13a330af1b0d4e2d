"""A certificate as a page for people: one content, written as text, Markdown or HTML; and a page that verifies others."""

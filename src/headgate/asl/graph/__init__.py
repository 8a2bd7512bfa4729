"""Graph: draws a definition as Mermaid, as SVG or as a text outline."""

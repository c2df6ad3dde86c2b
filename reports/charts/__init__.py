"""Pictures of the page: drawn as SVG that needs no script, and as data for the script that zooms."""

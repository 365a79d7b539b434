"""What an export says about itself: on the terminal, as JSON, and as one HTML page."""

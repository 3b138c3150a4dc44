"""The gates of external APIs, which apply breakers, rate limits and holds to calls."""

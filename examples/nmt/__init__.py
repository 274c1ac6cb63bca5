"""An attention LSTM that translates."""

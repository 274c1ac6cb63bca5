"""An LSTM with attention that translates."""

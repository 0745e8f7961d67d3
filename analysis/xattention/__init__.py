"""XAttention in numpy: block scores, the cut, and what they are worth."""

"""What groups are: parts of speech, something else, or nothing; measured, held against chance, named from data."""

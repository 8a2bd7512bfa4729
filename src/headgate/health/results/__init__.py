"""Results that tools report about datasets: each test and each job keeps its last result and its history."""
